#include "server/inference/services/open_inference_service.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <utility>

#include "open_inference/open_inference.grpc.pb.h"
#include "server/inference/models/model_server.h"
#include "server/inference/services/open_inference.h"
#include "server/services/call_interceptor.h"

namespace espalier {
namespace {

class OpenInferenceService final : public inference::GRPCInferenceService::Service {
 public:
  OpenInferenceService(const ModelServer* models, CallInterceptor* interceptor,
                       std::function<bool()> ready, std::string version)
      : models_(*models),
        interceptor_(*interceptor),
        ready_(std::move(ready)),
        version_(std::move(version)) {}

  grpc::Status ServerLive(grpc::ServerContext* context, const inference::ServerLiveRequest* request,
                          inference::ServerLiveResponse* response) override {
    const auto live = [&](const Caller&) {
      response->set_live(true);
      return absl::OkStatus();
    };
    return interceptor_.Handle(context, "OpenInference/ServerLive", request, live,
                               CallKind::kProbe);
  }

  grpc::Status ServerReady(grpc::ServerContext* context,
                           const inference::ServerReadyRequest* request,
                           inference::ServerReadyResponse* response) override {
    const auto ready = [&](const Caller&) {
      response->set_ready((!ready_ || ready_()) && AllModelsReady(models_));
      return absl::OkStatus();
    };
    return interceptor_.Handle(context, "OpenInference/ServerReady", request, ready,
                               CallKind::kProbe);
  }

  grpc::Status ModelReady(grpc::ServerContext* context, const inference::ModelReadyRequest* request,
                          inference::ModelReadyResponse* response) override {
    const auto ready = [&](const Caller& caller) {
      const absl::StatusOr<bool> answer = espalier::ModelReady(*request, caller, models_);
      if (answer.ok()) response->set_ready(*answer);
      return answer.status();
    };
    return interceptor_.Handle(context, "OpenInference/ModelReady", request, ready,
                               CallKind::kShort);
  }

  grpc::Status ServerMetadata(grpc::ServerContext* context,
                              const inference::ServerMetadataRequest* request,
                              inference::ServerMetadataResponse* response) override {
    const auto describe = [&](const Caller&) {
      *response = DescribeServer(version_);
      return absl::OkStatus();
    };
    return interceptor_.Handle(context, "OpenInference/ServerMetadata", request, describe,
                               CallKind::kShort);
  }

  grpc::Status ModelMetadata(grpc::ServerContext* context,
                             const inference::ModelMetadataRequest* request,
                             inference::ModelMetadataResponse* response) override {
    const auto describe = [&](const Caller& caller) {
      absl::StatusOr<inference::ModelMetadataResponse> answer =
          DescribeModel(*request, caller, models_);
      if (answer.ok()) *response = *std::move(answer);
      return answer.status();
    };
    return interceptor_.Handle(context, "OpenInference/ModelMetadata", request, describe,
                               CallKind::kShort);
  }

  grpc::Status ModelInfer(grpc::ServerContext* context, const inference::ModelInferRequest* request,
                          inference::ModelInferResponse*) override {
    const auto refuse = [](const Caller&) {
      return absl::UnimplementedError(
          "ModelInfer is not served; ask espalier.v1.Inference/Generate or /Embed, or over HTTP "
          "/v1/completions, /v1/chat/completions or /v1/embeddings");
    };
    return interceptor_.Handle(context, "OpenInference/ModelInfer", request, refuse,
                               CallKind::kShort);
  }

 private:
  const ModelServer& models_;
  CallInterceptor& interceptor_;
  const std::function<bool()> ready_;
  const std::string version_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewOpenInferenceService(const ModelServer* models,
                                                       CallInterceptor* interceptor,
                                                       std::function<bool()> ready,
                                                       std::string version) {
  return std::make_unique<OpenInferenceService>(models, interceptor, std::move(ready),
                                                std::move(version));
}

}  // namespace espalier
