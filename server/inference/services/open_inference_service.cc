#include "server/inference/services/open_inference_service.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "open_inference/open_inference.grpc.pb.h"
#include "server/inference/models/model_server.h"
#include "server/inference/services/infer_proto.h"
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

  grpc::Status ModelStatistics(grpc::ServerContext* context,
                               const inference::ModelStatisticsRequest* request,
                               inference::ModelStatisticsResponse* response) override {
    const auto count = [&](const Caller& caller) {
      absl::StatusOr<inference::ModelStatisticsResponse> answer =
          StatisticsOf(*request, caller, models_);
      if (answer.ok()) *response = *std::move(answer);
      return answer.status();
    };
    return interceptor_.Handle(context, "OpenInference/ModelStatistics", request, count,
                               CallKind::kShort);
  }

  grpc::Status ModelInfer(grpc::ServerContext* context, const inference::ModelInferRequest* request,
                          inference::ModelInferResponse* response) override {
    const auto infer = [&](const Caller& caller) {
      // The tensors are taken out of the message, which gRPC needs no more.
      return Infer(context, caller, const_cast<inference::ModelInferRequest*>(request), response);
    };
    return interceptor_.Handle(context, "OpenInference/ModelInfer", request, infer);
  }

 private:
  absl::Status Infer(grpc::ServerContext* context, const Caller& caller,
                     inference::ModelInferRequest* request,
                     inference::ModelInferResponse* response) {
    absl::StatusOr<std::shared_ptr<LoadedModel>> model =
        FindGraph(request->model_name(), request->model_version(), caller, models_);
    if (!model.ok()) return model.status();
    response->set_model_name(request->model_name());
    response->set_model_version(VersionOf((*model)->description));
    response->set_id(request->id());
    absl::StatusOr<InferCall> call = TakeCall(request);
    if (!call.ok()) return call.status();
    struct Answer {
      absl::Notification over;
      absl::StatusOr<std::vector<InferTensor>> outputs;
    };
    const auto answer = std::make_shared<Answer>();
    StartInfer(**model, *std::move(call), absl::FromChrono(context->deadline()),
               [answer](absl::StatusOr<std::vector<InferTensor>> outputs) {
                 answer->outputs = std::move(outputs);
                 answer->over.Notify();
               });
    // Unserving the model ends its requests.
    model->reset();
    answer->over.WaitForNotification();
    if (const auto delay = answer->outputs.status().GetPayload(kRetryAfterPayload)) {
      context->AddTrailingMetadata("retry-after", std::string(*delay));
    }
    if (!answer->outputs.ok()) return answer->outputs.status();
    FillOutputs(*std::move(answer->outputs), response);
    return absl::OkStatus();
  }

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
