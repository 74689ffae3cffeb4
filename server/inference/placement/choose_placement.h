// Where the models of a served LLM run, if the request leaves it to the coordinator: what is known
// of the request and of the workers, as a problem for planner/serving, and its answer as messages.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/model.h"
#include "ops/schema/registry.h"
#include "planner/planner.h"
#include "planner/serving/place_serving.h"
#include "espalier/v1/inference.pb.h"
#include "server/membership/worker_registry.h"
#include "serving/speculative/expansion.h"

namespace espalier {

// A step of one model while so many requests are answered at once, each with its tree.
struct ExpectedStep {
  ServingShape shape;  // no larger than the model's largest step
  double steps = 1;    // in one round
};
// Of the LLM (`drafts` false) beside so many SSMs, or of one of these.
ExpectedStep ExpectStep(const ServingShape& largest, const Expansion& expansion, int ssms,
                        int requests, bool drafts);

// Tokens of one round, if each level of a tree has the next token with the same chance.
double ExpectedTokens(const Expansion& expansion, int ssms, int requests);

struct PlacementRequest {
  const OpRegistry* registry = nullptr;
  std::vector<PlacedModel> models;                          // the LLM, then the SSMs
  std::vector<Member> workers;                              // that are idle
  v1::Link link;                                         // between them
  std::shared_ptr<const CommunicationModel> communication;  // optional: as they measured it
  std::optional<v1::Device> own;                         // this process, measured
  double tokens_per_round = 1;
};

struct PlacementDecision {
  std::vector<v1::ModelPlacement> chosen;  // with the workers' ids
  std::vector<v1::PlacementCandidate> candidates;
};

// Errors of PlaceServing.
absl::StatusOr<PlacementDecision> ChoosePlacement(const PlacementRequest& request);

}  // namespace espalier
