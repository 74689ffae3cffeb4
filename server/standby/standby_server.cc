#include "server/standby/standby_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/net/authenticated_channel.h"
#include "base/net/grpc_status.h"
#include "base/net/listen_error.h"
#include "base/net/own_address.h"

namespace espalier {
namespace {

constexpr absl::Duration kLastAnswers = absl::Seconds(1);
constexpr char kJson[] = "application/json";

// Removes what the gRPC library adds to every server of the process, such as reflection.
class NoPlugins : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->clear();
  }
};

// Ends a call as soon as it begins.
class Refusal : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

class RefusingService : public grpc::CallbackGenericService {
 public:
  explicit RefusingService(std::function<absl::Status(const std::string& authorization)> answer)
      : answer_(std::move(answer)) {}

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    const auto shown = context->client_metadata().find("authorization");
    std::string authorization;
    if (shown != context->client_metadata().end()) {
      authorization.assign(shown->second.data(), shown->second.size());
    }
    return new Refusal(ToGrpc(answer_(authorization)));  // deletes itself
  }

  const std::function<absl::Status(const std::string& authorization)> answer_;
};

class StandbyServerImpl : public StandbyServer {
 public:
  explicit StandbyServerImpl(StandbyServerOptions options)
      : options_(std::move(options)), service_([this](const std::string& authorization) {
          return absl::UnavailableError(Description(authorization));
        }) {}

  ~StandbyServerImpl() override {
    if (http_ != nullptr) http_->Stop();
    if (grpc_ == nullptr) return;
    grpc_->Shutdown(absl::ToChronoTime(absl::Now() + kLastAnswers));
    grpc_->Wait();
  }

  absl::Status Listen() {
    absl::StatusOr<HostAndPort> listen = ParseHostAndPort(options_.listen, "--listen");
    if (!listen.ok()) return listen.status();
    grpc::ServerBuilder builder;
    builder.SetOption(std::make_unique<NoPlugins>());
    int port = 0;
    builder.AddListeningPort(options_.listen, ServerCredentials(options_.tls), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterCallbackGenericService(&service_);
    grpc_ = builder.BuildAndStart();
    if (grpc_ == nullptr || port == 0) return CannotListen(options_.listen);
    grpc_address_ = JoinHostAndPort(listen->host, port);
    if (options_.http_listen.empty()) return absl::OkStatus();
    absl::StatusOr<HostAndPort> http = ParseHostAndPort(options_.http_listen, "--http-listen");
    if (!http.ok()) return http.status();
    HttpServerOptions server;
    server.address = http->host == "localhost" ? "127.0.0.1" : http->host;
    server.port = static_cast<uint16_t>(http->port);
    server.certificates = options_.http_certificates;
    server.threads = 1;
    server.quick = [](const HttpRequest&) { return true; };
    absl::StatusOr<std::unique_ptr<HttpServer>> started = HttpServer::Start(
        std::move(server),
        [this](const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
          Answer(request, *responder);
        });
    if (!started.ok()) return started.status();
    http_ = *std::move(started);
    http_address_ = JoinHostAndPort(http->host, http_->port());
    return absl::OkStatus();
  }

  std::string grpc_address() const override { return grpc_address_; }
  std::string http_address() const override { return http_address_; }
  absl::Status SetHttpCertificates(const HttpCertificates& certificates) override {
    return http_ == nullptr ? absl::OkStatus() : http_->SetCertificates(certificates);
  }

 private:
  bool Knows(const std::string& authorization) const {
    return !options_.knows || options_.knows(authorization);
  }
  // What others may see of the cluster is for callers with a key.
  std::string Description(const std::string& authorization) const {
    return Knows(authorization) ? options_.describe() : "standby";
  }

  void Answer(const HttpRequest& request, HttpResponder& responder) const {
    const auto header = request.headers.find("authorization");
    const std::string authorization =
        header == request.headers.end() ? std::string() : header->second;
    const bool health = request.path == "/health" || request.path == "/v2/health/live";
    const bool probe = health || request.path == "/ready" || request.path == "/v2/health/ready";
    // 401 would be final for a client whose token the leader accepts.
    const bool may_be_known = Knows(authorization) || (options_.only_leader_knows &&
                                                       options_.only_leader_knows(authorization));
    if (!may_be_known && !(probe && options_.open_probes)) {
      responder.Send(401, kJson, R"({"error":{"message":"an API key is needed"}})",
                     {{"WWW-Authenticate", "Bearer"}});
      return;
    }
    if (health) {
      responder.Send(200, kJson,
                     request.path == "/health" ? R"({"status":"ok"})" : R"({"live":true})");
      return;
    }
    const std::string description = Description(authorization);
    nlohmann::ordered_json json;
    if (probe) {
      json["status"] = description;
    } else {
      json["error"]["message"] = description;
    }
    responder.Send(503, kJson, json.dump(), {{"Retry-After", "1"}});
  }

  const StandbyServerOptions options_;
  RefusingService service_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<HttpServer> http_;
  std::string grpc_address_, http_address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StandbyServer>> StandbyServer::Start(StandbyServerOptions options) {
  auto server = std::make_unique<StandbyServerImpl>(std::move(options));
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  return server;
}

}  // namespace espalier
