// A model that is served, and its description.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "espalier/v1/inference.pb.h"
#include "server/inference/models/async_engine.h"
#include "server/inference/models/grammar_cache.h"
#include "server/inference/prediction/predictor.h"

namespace espalier {

// One model with its engine. Immutable except for the engine's state.
struct LoadedModel {
  v1::ServedModel description;
  std::unique_ptr<AsyncEngine> engine;  // null for a trained graph, which has a predictor
  std::unique_ptr<Predictor> predictor;
  std::unique_ptr<GrammarCache> grammars;
  const Clock* clock = nullptr;
  // Adds what changes while the model is served: its workers and their state. Null: nothing.
  std::function<void(v1::ServedModel*)> describe;
};

// Returns the part of a description that follows from the request alone.
v1::ServedModel DescribeRequest(const v1::ServeModelRequest& request,
                                const std::vector<v1::ModelPlacement>& placements);
// Describes the present state, including why an SSM has failed.
v1::ServedModel Describe(const LoadedModel& model);
// Returns FailedPrecondition, with a remedy, if all of the model's SSMs have failed or have too few
// positions to draft after a prompt of `prompt_tokens`.
absl::Status CheckDrafting(const LoadedModel& model, size_t prompt_tokens);
// Returns whether a model with this description answers requests. One on workers does while they
// hold it. Absent SSMs only slow it down.
bool AnswersRequests(const v1::ServedModel& model);
// Returns the adapter's index, or -1 for the empty name. Returns NotFound, listing the adapters,
// for an unknown one.
absl::StatusOr<int> AdapterIndex(const v1::ServedModel& model, const std::string& adapter);

}  // namespace espalier
