#include "server/inference/services/open_inference.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"

namespace espalier {
namespace {

constexpr char kName[] = "espalier";
constexpr char kVersion[] = "1";
constexpr char kBinaryData[] = "binary_tensor_data";  // as Triton calls them
constexpr char kStatistics[] = "statistics";

using TensorMetadata = inference::ModelMetadataResponse::TensorMetadata;

absl::StatusOr<std::shared_ptr<LoadedModel>> Find(const std::string& name,
                                                  const std::string& version, const Caller& caller,
                                                  const ModelServer& models) {
  absl::StatusOr<ModelServer::Target> target = models.ResolveAny(name, caller);
  if (!target.ok()) return target.status();
  const std::string served = VersionOf(target->model->description);
  if (!version.empty() && version != served) {
    return absl::NotFoundError(absl::StrCat("model '", name, "' has no version '",
                                            version.substr(0, 100), "'; its only one is ", served));
  }
  return std::move(target->model);
}

void AddTensors(const google::protobuf::RepeatedPtrField<v1::GraphTensor>& tensors,
                google::protobuf::RepeatedPtrField<TensorMetadata>* out) {
  for (const v1::GraphTensor& tensor : tensors) {
    TensorMetadata* described = out->Add();
    described->set_name(tensor.name());
    described->set_datatype(DatatypeOf(FromProto(tensor.example().dtype())));
    described->add_shape(-1);
    for (const int64_t dim : tensor.example().dims()) described->add_shape(dim);
  }
}

// Passes are short: a full queue has room soon.
absl::Status WithRetryDelay(absl::Status status) {
  if (absl::IsResourceExhausted(status)) status.SetPayload(kRetryAfterPayload, absl::Cord("1"));
  return status;
}

void SetDuration(int64_t count, double seconds, inference::StatisticDuration* out) {
  out->set_count(static_cast<uint64_t>(count));
  out->set_ns(static_cast<uint64_t>(1e9 * seconds));
}

void AddStatistics(const std::string& name, const LoadedModel& model,
                   inference::ModelStatisticsResponse* response) {
  const PredictorStatistics statistics = model.predictor->statistics();
  inference::ModelStatistics* out = response->add_model_stats();
  out->set_name(name);
  out->set_version(VersionOf(model.description));
  if (statistics.last_answer > absl::InfinitePast()) {
    out->set_last_inference(static_cast<uint64_t>(absl::ToUnixMillis(statistics.last_answer)));
  }
  out->set_inference_count(static_cast<uint64_t>(statistics.examples));
  out->set_execution_count(static_cast<uint64_t>(statistics.passes));
  inference::InferStatistics* requests = out->mutable_inference_stats();
  SetDuration(statistics.requests, statistics.request_seconds, requests->mutable_success());
  SetDuration(statistics.failures, statistics.failure_seconds, requests->mutable_fail());
  SetDuration(statistics.requests, statistics.queue_seconds, requests->mutable_queue());
  SetDuration(statistics.requests, 0, requests->mutable_compute_input());
  SetDuration(statistics.requests, statistics.request_seconds - statistics.queue_seconds,
              requests->mutable_compute_infer());
  SetDuration(statistics.requests, 0, requests->mutable_compute_output());
  for (const auto& [examples, passes] : statistics.passes_of_size) {
    inference::InferBatchStatistics* batch = out->add_batch_stats();
    batch->set_batch_size(static_cast<uint64_t>(examples));
    SetDuration(passes.count, 0, batch->mutable_compute_input());
    SetDuration(passes.count, passes.seconds, batch->mutable_compute_infer());
    SetDuration(passes.count, 0, batch->mutable_compute_output());
  }
}

void AddText(const char* name, TensorMetadata* tensor) {
  tensor->set_name(name);
  tensor->set_datatype("BYTES");
  tensor->add_shape(1);
}

}  // namespace

inference::ServerMetadataResponse DescribeServer(const std::string& version) {
  inference::ServerMetadataResponse response;
  response.set_name(kName);
  response.set_version(version);
  response.add_extensions(kBinaryData);
  response.add_extensions(kStatistics);
  return response;
}

bool AllModelsReady(const ModelServer& models) {
  for (const v1::ServedModel& model : models.ListWithFailed()) {
    if (!AnswersRequests(model)) return false;
  }
  return true;
}

absl::StatusOr<bool> ModelReady(const inference::ModelReadyRequest& request, const Caller& caller,
                                const ModelServer& models) {
  const absl::StatusOr<std::shared_ptr<LoadedModel>> model =
      Find(request.name(), request.version(), caller, models);
  if (absl::IsUnavailable(model.status())) return false;  // loading, or the server drains
  if (!model.ok()) return model.status();
  return AnswersRequests(Describe(**model));
}

absl::StatusOr<inference::ModelMetadataResponse> DescribeModel(
    const inference::ModelMetadataRequest& request, const Caller& caller,
    const ModelServer& models) {
  const absl::StatusOr<std::shared_ptr<LoadedModel>> model =
      Find(request.name(), request.version(), caller, models);
  if (!model.ok()) return model.status();
  const v1::ServedModel& served = (*model)->description;
  inference::ModelMetadataResponse response;
  response.set_name(request.name());
  response.add_versions(VersionOf(served));
  response.set_platform(kName);
  if (served.has_graph()) {
    AddTensors(served.graph().inputs(), response.mutable_inputs());
    AddTensors(served.graph().outputs(), response.mutable_outputs());
  } else {
    AddText("prompt", response.add_inputs());
    AddText("text", response.add_outputs());
  }
  return response;
}

absl::StatusOr<inference::ModelStatisticsResponse> StatisticsOf(
    const inference::ModelStatisticsRequest& request, const Caller& caller,
    const ModelServer& models) {
  inference::ModelStatisticsResponse response;
  if (!request.name().empty()) {
    const absl::StatusOr<std::shared_ptr<LoadedModel>> model =
        Find(request.name(), request.version(), caller, models);
    if (!model.ok()) return model.status();
    if ((*model)->predictor == nullptr) {
      return absl::UnimplementedError(absl::StrCat("'", request.name(),
                                                   "' is a language model, whose statistics are "
                                                   "metrics: GET /metrics"));
    }
    AddStatistics(request.name(), **model, &response);
    return response;
  }
  for (const v1::ServedModel& served : models.ListWithFailed()) {
    if (!served.has_graph()) continue;
    const absl::StatusOr<std::shared_ptr<LoadedModel>> model =
        Find(served.name(), "", caller, models);
    // Others are not the caller's, or are being loaded.
    if (model.ok() && (*model)->predictor != nullptr) {
      AddStatistics(served.name(), **model, &response);
    }
  }
  return response;
}

std::string VersionOf(const v1::ServedModel& model) {
  const size_t at = model.artifact_version().rfind('@');
  if (!model.has_graph() || at == std::string::npos) return kVersion;
  return model.artifact_version().substr(at + 1);
}

absl::StatusOr<std::shared_ptr<LoadedModel>> FindGraph(const std::string& name,
                                                       const std::string& version,
                                                       const Caller& caller,
                                                       const ModelServer& models) {
  absl::StatusOr<std::shared_ptr<LoadedModel>> model = Find(name, version, caller, models);
  if (!model.ok() || (*model)->predictor != nullptr) return model;
  return absl::UnimplementedError(absl::StrCat(
      "ModelInfer is for trained graphs, and '", name,
      "' is a language model; ask espalier.v1.Inference/Generate or /Embed, or over HTTP "
      "/v1/completions, /v1/chat/completions or /v1/embeddings"));
}

void StartInfer(const LoadedModel& model, InferCall call, absl::Time deadline, InferDone done) {
  if (call.timeout.has_value()) {
    deadline = std::min(deadline, model.clock->Now() + *call.timeout);
  }
  const GraphSignature& signature = model.predictor->signature();
  absl::StatusOr<CheckedCall> checked = CheckCall(signature, std::move(call));
  if (!checked.ok()) return done(checked.status());
  const int64_t examples = checked->examples;
  model.predictor->Predict(examples, std::move(checked->inputs), deadline,
                           [signature, examples, wanted = std::move(checked->outputs),
                            done = std::move(done)](absl::StatusOr<Predictor::Outputs> outputs) {
                             if (!outputs.ok()) return done(WithRetryDelay(outputs.status()));
                             done(OutputsOf(signature, wanted, examples, *std::move(outputs)));
                           });
}

}  // namespace espalier
