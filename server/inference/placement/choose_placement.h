// Chooses where the models of a served LLM run, if the request leaves it to the coordinator.
// Translates request and workers into a problem for planner/serving, and the solution into
// messages.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "models/model.h"
#include "ops/schema/registry.h"
#include "planner/planner.h"
#include "planner/serving/place_serving.h"
#include "server/membership/worker_registry.h"
#include "serving/speculative/expansion.h"

namespace espalier {

// One model's step while `requests` requests are answered, each with its draft tree.
struct ExpectedStep {
  ServingShape shape;  // at most the model's largest step
  double steps = 1;    // per verification round
};
// For the LLM (`drafts` false) with `ssms` SSMs, or for one of the SSMs.
ExpectedStep ExpectStep(const ServingShape& largest, const Expansion& expansion, int ssms,
                        int requests, bool drafts);

// Returns the expected tokens per round, assuming the same acceptance rate at each tree level.
double ExpectedTokens(const Expansion& expansion, int ssms, int requests);

struct PlacementRequest {
  const OpRegistry* registry = nullptr;
  std::vector<PlacedModel> models;                          // the LLM, then the SSMs
  std::vector<Member> workers;                              // idle ones
  v1::Link link;                                            // between workers
  std::shared_ptr<const CommunicationModel> communication;  // optional: measured
  std::optional<v1::Device> own;                            // this process as a device
  double tokens_per_round = 1;
};

struct PlacementDecision {
  std::vector<v1::ModelPlacement> chosen;  // with worker IDs
  std::vector<v1::PlacementCandidate> candidates;
};

// Returns the errors of PlaceServing.
absl::StatusOr<PlacementDecision> ChoosePlacement(const PlacementRequest& request);

}  // namespace espalier
