#include "server/services/access_service.h"

#include <grpcpp/grpcpp.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/net/access_token.h"
#include "base/net/authenticated_channel.h"
#include "base/net/own_address.h"
#include "base/net/transport_security.h"
#include "base/net/x509.h"
#include "espalier/v1/access.grpc.pb.h"
#include "server/access/certificate_authority.h"
#include "server/access/token_store.h"
#include "server/services/call_interceptor.h"

namespace espalier {
namespace {

using grpc::ServerContext;

class AccessService : public v1::Access::Service {
 public:
  AccessService(CallInterceptor* interceptor, AccessServiceOptions options)
      : interceptor_(*interceptor), options_(std::move(options)) {}

  grpc::Status CreateToken(ServerContext* context, const v1::CreateTokenRequest* request,
                           v1::CreateTokenReply* reply) override {
    return Answer(context, "Access/CreateToken", request, [&](const Caller& caller) {
      absl::StatusOr<TokenStore::Created> made = options_.tokens->Create(*request, caller);
      if (!made.ok()) return made.status();
      AccessTokenText text;
      text.id = made->token.id();
      text.secret = made->secret;
      text.ca_sha256 = options_.authority->ca_sha256();
      text.coordinator = options_.advertise.empty() ? ReachableAddress(options_.grpc_address())
                                                    : options_.advertise;
      text.http = HttpFor(text.coordinator);
      reply->set_coordinator(text.coordinator);
      reply->set_http(text.http);
      reply->set_ca_pem(options_.authority->ca());
      reply->set_text(FormatAccessToken(text));
      *reply->mutable_token() = std::move(made->token);
      return absl::OkStatus();
    });
  }

  grpc::Status ListTokens(ServerContext* context, const v1::ListTokensRequest* request,
                          v1::ListTokensReply* reply) override {
    return Answer(context, "Access/ListTokens", request, [&](const Caller&) {
      absl::StatusOr<std::vector<v1::AccessToken>> tokens = options_.tokens->List();
      if (!tokens.ok()) return tokens.status();
      for (v1::AccessToken& token : *tokens) *reply->add_tokens() = std::move(token);
      return absl::OkStatus();
    });
  }

  grpc::Status RevokeToken(ServerContext* context, const v1::RevokeTokenRequest* request,
                           v1::RevokeTokenReply* reply) override {
    return Answer(context, "Access/RevokeToken", request, [&](const Caller&) {
      absl::StatusOr<v1::AccessToken> token =
          options_.tokens->Revoke(request->id(), request->certificates());
      if (!token.ok()) return token.status();
      *reply->mutable_token() = *std::move(token);
      return absl::OkStatus();
    });
  }

  grpc::Status IssueCertificate(ServerContext* context, const v1::IssueCertificateRequest* request,
                                v1::IssuedCertificate* reply) override {
    const auto issue = [&](const Caller&) -> absl::Status {
      const absl::StatusOr<CertificateRequest> wanted =
          ReadCertificateRequest(request->certificate_request());
      if (!wanted.ok()) return wanted.status();
      absl::Status counted = options_.tokens->Use({.token_id = request->token_id(),
                                                   .secret = request->secret(),
                                                   .idempotency_key = request->idempotency_key(),
                                                   .public_key_sha256 = wanted->public_key_sha256,
                                                   .certificate_until = Until()});
      if (!counted.ok()) return counted;
      // A repetition gets the same name. Leases belong to names: nobody must find a key with that
      // of another one.
      const std::string name = absl::StrCat("worker-", wanted->public_key_sha256.substr(0, 32));
      return Sign(*wanted, {name, request->token_id()}, reply);
    };
    return Answer(context, "Access/IssueCertificate", request, issue, CallKind::kHasToken);
  }

  grpc::Status RenewCertificate(ServerContext* context, const v1::RenewCertificateRequest* request,
                                v1::IssuedCertificate* reply) override {
    return Answer(context, "Access/RenewCertificate", request, [&](const Caller&) -> absl::Status {
      const std::string shown = PeerCertificateOf(*context);
      if (shown.empty()) {
        return absl::UnauthenticatedError(
            "a certificate is renewed for the one that is shown, and this call shows none");
      }
      const absl::StatusOr<WorkerIdentity> identity = options_.authority->Identify(shown);
      if (!identity.ok()) return identity.status();
      const absl::StatusOr<CertificateRequest> wanted =
          ReadCertificateRequest(request->certificate_request());
      if (!wanted.ok()) return wanted.status();
      if (absl::Status s = options_.tokens->Renew(identity->token_id, Until()); !s.ok()) return s;
      return Sign(*wanted, *identity, reply);
    });
  }

 private:
  // The address of HTTP for those who reach gRPC at `coordinator`; empty: there is none for them.
  std::string HttpFor(const std::string& coordinator) const {
    const absl::StatusOr<HostAndPort> http = ParseHostAndPort(options_.http_address(), "HTTP");
    // Of several, each has its own HTTP; any answers.
    const absl::StatusOr<HostAndPort> grpc =
        ParseHostAndPort(coordinator.substr(0, coordinator.find(',')), "gRPC");
    if (!http.ok() || !grpc.ok()) return "";
    if (IsAnyAddress(http->host)) return JoinHostAndPort(grpc->host, http->port);
    const bool apart = IsLoopback(http->host) && !IsLoopback(grpc->host);
    return apart ? "" : JoinHostAndPort(http->host, http->port);
  }

  absl::Time Until() const { return options_.clock->Now() + options_.worker_certificate_life; }

  absl::Status Sign(const CertificateRequest& wanted, const WorkerIdentity& identity,
                    v1::IssuedCertificate* reply) const {
    absl::StatusOr<std::string> chain =
        options_.authority->SignWorker(wanted, identity, options_.worker_certificate_life);
    if (!chain.ok()) return chain.status();
    reply->set_certificate_chain(*std::move(chain));
    reply->set_ca_pem(options_.authority->ca());
    return absl::OkStatus();
  }

  // The calls are short, so that a busy daemon does not lose its workers.
  grpc::Status Answer(ServerContext* context, const std::string& method,
                      const google::protobuf::Message* request, const CallInterceptor::Body& body,
                      CallKind kind = CallKind::kShort) {
    const auto run = [&](const Caller& caller) {
      if (options_.tokens != nullptr) return body(caller);
      return absl::Status(
          kind == CallKind::kHasToken ? absl::StatusCode::kUnauthenticated
                                      : absl::StatusCode::kFailedPrecondition,
          "there are tokens only where the coordinator has a CA of its own: start it with "
          "espalierd --tls=auto");
    };
    return interceptor_.Handle(context, method, request, run, kind);
  }

  CallInterceptor& interceptor_;
  const AccessServiceOptions options_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAccessService(CallInterceptor* interceptor,
                                                 AccessServiceOptions options) {
  return std::make_unique<AccessService>(interceptor, std::move(options));
}

}  // namespace espalier
