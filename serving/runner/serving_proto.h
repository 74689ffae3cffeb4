// Serving's plain values as the Worker service carries them. What comes from outside is checked
// here as far as it can be without the program and the weights' files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/lora.h"
#include "models/model.h"
#include "espalier/v1/worker.pb.h"
#include "serving/runner/model_runner.h"

namespace espalier {

void SetWeights(const WeightMap& map, v1::StartServingRequest* request);
// InvalidArgument names the parameter and the piece that is wrong.
absl::StatusOr<WeightMap> WeightsOf(const v1::StartServingRequest& request);

// By parameter, then by adapter.
using AdapterParameters = std::map<std::string, std::vector<AdapterMatrix>>;
void SetAdapters(const AdapterParameters& adapters, v1::StartServingRequest* request);
// InvalidArgument names the parameter that comes twice.
absl::StatusOr<AdapterParameters> AdaptersOf(const v1::StartServingRequest& request);

v1::ServingLimits ToProto(const RunnerLimits& limits, int max_output_rows);
// InvalidArgument names a limit that is negative, or missing where every model has one.
absl::StatusOr<RunnerLimits> LimitsOf(const v1::ServingLimits& limits);

void SetBatch(const RunnerBatch& batch, v1::ServingStep* step);
// As it came: CheckBatch says whether it may be run. InvalidArgument if its edits are torn.
absl::Status TakeBatch(const v1::ServingStep& step, RunnerBatch* batch);

// With their log-probabilities.
void SetChoices(const RunnerOutput& logits, v1::ServingResult* result);
// False if they are torn. CheckRunnerOutput says whether they may be believed.
bool TakeChoices(const v1::ServingResult& result, RunnerOutput* logits);

}  // namespace espalier
