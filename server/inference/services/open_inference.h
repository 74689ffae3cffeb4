// The Open Inference Protocol (KServe V2), for gRPC and HTTP. A model has one version, that of its
// artifact for a trained graph and else "1", which may be omitted; adapters count as models.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/net/caller.h"
#include "open_inference/open_inference.pb.h"
#include "server/inference/models/model_server.h"
#include "server/inference/prediction/infer_call.h"

namespace espalier {

inference::ServerMetadataResponse DescribeServer(const std::string& version);

// Returns whether all served models answer requests; true if none is served. The caller checks
// whether requests are admitted at all.
bool AllModelsReady(const ModelServer& models);

// Returns NotFound for an unknown model or version; false while it is not loaded.
absl::StatusOr<bool> ModelReady(const inference::ModelReadyRequest& request, const Caller& caller,
                                const ModelServer& models);
// Returns NotFound for an unknown model or version; Unavailable while it is not loaded or the
// server drains.
absl::StatusOr<inference::ModelMetadataResponse> DescribeModel(
    const inference::ModelMetadataRequest& request, const Caller& caller,
    const ModelServer& models);

// Triton's statistics of a graph, or of all that the caller may ask. NotFound for an unknown model
// or version; Unimplemented, with a remedy, for a language model.
absl::StatusOr<inference::ModelStatisticsResponse> StatisticsOf(
    const inference::ModelStatisticsRequest& request, const Caller& caller,
    const ModelServer& models);

// Returns the model that a call is for. NotFound for an unknown model or version; Unimplemented,
// with a remedy, for a language model; Unavailable while it is not loaded or the server drains.
absl::StatusOr<std::shared_ptr<LoadedModel>> FindGraph(const std::string& name,
                                                       const std::string& version,
                                                       const Caller& caller,
                                                       const ModelServer& models);
// The version of a served model: "3" for a graph served from "digits@3".
std::string VersionOf(const v1::ServedModel& model);

using InferDone = std::function<void(absl::StatusOr<std::vector<InferTensor>>)>;
// Computes the outputs of a call and hands them to `done`, once: at once with the errors of
// CheckCall, else as Predictor::Predict, a full queue with kRetryAfterPayload. `deadline`: of the
// caller; the call's own timeout counts, too. `model` may be dropped while it runs.
void StartInfer(const LoadedModel& model, InferCall call, absl::Time deadline, InferDone done);

}  // namespace espalier
