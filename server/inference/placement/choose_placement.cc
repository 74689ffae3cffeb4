#include "server/inference/placement/choose_placement.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "planner/cost/analytic_cost.h"

namespace espalier {
namespace {

// Overhead of a step on workers: a gRPC message out and one back, with the waking of threads. An
// estimate; tests/benchmarks/serving_placements.py measures the difference between one worker and
// this process.
constexpr double kRemoteStepOverheadSeconds = 3e-4;

// Assumed chance that each tree level holds the next token. Equal for all placements: it scales the
// displayed tokens per second but does not change their order.
constexpr double kAssumedAcceptanceRate = 0.6;

v1::ModelPlacement PlacementOf(const PredictedPlacement& placed,
                               const std::vector<Member>& workers) {
  v1::ModelPlacement place;
  if (placed.own()) return place;
  place.set_tensor_parallel(placed.degrees.tensor_parallel);
  place.set_pipeline_parallel(placed.degrees.pipeline_parallel);
  for (int d : placed.devices) {
    place.add_workers(workers[static_cast<size_t>(d)].lease.worker_id());
  }
  return place;
}

}  // namespace

ExpectedStep ExpectStep(const ServingShape& largest, const Expansion& expansion, int ssms,
                        int requests, bool drafts) {
  const int depth = expansion.depth();
  int rows = requests * (1 + expansion.nodes(depth) * ssms);
  ExpectedStep step;
  if (drafts) {
    // The last level is not run; accepted tokens come with the root.
    step.steps = std::max(1, depth);
    rows = (requests * (1 + expansion.nodes(std::max(0, depth - 1))) + depth) / std::max(1, depth);
  }
  const int context = largest.max_context_slots / std::max(1, largest.max_sequences);
  step.shape = largest;
  step.shape.max_rows = std::clamp(rows, 1, largest.max_rows);
  step.shape.max_output_rows =
      std::clamp(step.shape.max_rows, 1, std::max(1, largest.max_output_rows));
  step.shape.max_sequences = std::clamp(requests, 1, largest.max_sequences);
  // Assume half-finished answers.
  step.shape.max_context_slots =
      std::clamp(step.shape.max_sequences * std::max(1, context / 2), 1, largest.max_context_slots);
  step.shape.max_ancestor_slots = std::clamp(step.shape.max_rows * std::max(1, depth), 1,
                                             std::max(1, largest.max_ancestor_slots));
  return step;
}

double ExpectedTokens(const Expansion& expansion, int ssms, int requests) {
  double each = 1;
  for (int depth = 1; ssms > 0 && depth <= expansion.depth(); ++depth) {
    each += std::pow(kAssumedAcceptanceRate, depth);
  }
  return each * requests;
}

absl::StatusOr<PlacementDecision> ChoosePlacement(const PlacementRequest& request) {
  AnalyticCost cost;
  ServingProblem problem;
  problem.registry = request.registry;
  problem.models = request.models;
  for (const Member& member : request.workers) problem.machine.devices.push_back(member.device);
  problem.machine.link = request.link;
  problem.machine.communication = request.communication;
  problem.own = request.own;
  problem.remote_seconds = kRemoteStepOverheadSeconds;
  problem.tokens_per_round = request.tokens_per_round;
  problem.cost = &cost;
  const absl::StatusOr<std::vector<ServingChoice>> choices = PlaceServing(problem);
  if (!choices.ok()) return choices.status();
  PlacementDecision decision;
  for (const ServingChoice& choice : *choices) {
    v1::PlacementCandidate candidate;
    std::map<int, int64_t> bytes;  // by device; -1: this process
    for (size_t m = 0; m < choice.models.size(); ++m) {
      const PredictedPlacement& placed = choice.models[m];
      const v1::ModelPlacement place = PlacementOf(placed, request.workers);
      *(m == 0 ? candidate.mutable_llm() : candidate.add_ssms()) = place;
      if (decision.candidates.empty()) decision.chosen.push_back(place);
      for (size_t r = 0; r < placed.bytes.size(); ++r) {
        bytes[placed.own() ? -1 : placed.devices[r]] += placed.bytes[r];
      }
    }
    int64_t most = 0;
    for (const auto& [device, here] : bytes) most = std::max(most, here);
    candidate.set_concurrent_steps(choice.concurrent_steps);
    candidate.set_llm_seconds(choice.llm_seconds);
    candidate.set_draft_seconds(choice.draft_seconds);
    candidate.set_tokens_per_second(choice.tokens_per_second);
    candidate.set_peak_device_bytes(most);
    candidate.set_refused(choice.refused);
    candidate.set_chosen(decision.candidates.empty());
    decision.candidates.push_back(std::move(candidate));
  }
  return decision;
}

}  // namespace espalier
