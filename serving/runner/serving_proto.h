// Conversions between serving's plain values and messages of the Worker service. Checks received
// messages as far as possible without the program and the weight files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/worker.pb.h"
#include "models/lora.h"
#include "models/model.h"
#include "serving/runner/model_runner.h"

namespace espalier {

void SetWeights(const WeightMap& map, v1::StartServingRequest* request);
// Returns InvalidArgument naming the parameter and the invalid piece.
absl::StatusOr<WeightMap> WeightsOf(const v1::StartServingRequest& request);

// By parameter, then by adapter.
using AdapterParameters = std::map<std::string, std::vector<AdapterMatrix>>;
void SetAdapters(const AdapterParameters& adapters, v1::StartServingRequest* request);
// Returns InvalidArgument naming a duplicate parameter.
absl::StatusOr<AdapterParameters> AdaptersOf(const v1::StartServingRequest& request);

v1::ServingLimits ToProto(const RunnerLimits& limits, int max_output_rows);
// Returns InvalidArgument naming a limit that is negative, or a required one that is missing.
absl::StatusOr<RunnerLimits> LimitsOf(const v1::ServingLimits& limits);

void SetBatch(const RunnerBatch& batch, v1::ServingStep* step);
// Copies the batch without validating it: CheckBatch does. Returns InvalidArgument if its logit
// edits are incomplete.
absl::Status TakeBatch(const v1::ServingStep& step, RunnerBatch* batch);

// Includes log-probabilities.
void SetChoices(const RunnerOutput& logits, v1::ServingResult* result);
// Returns false if they are incomplete. CheckRunnerOutput validates them.
bool TakeChoices(const v1::ServingResult& result, RunnerOutput* logits);

}  // namespace espalier
