// Placement of the models of speculative serving: the LLM and each SSM (small speculative model)
// run in the coordinator's process, on one worker, or split over several (ServingDegrees). A worker
// may hold parts of several models, as far as its memory allows. One search covers all models and
// uses the cost model of training.
//
// The objective is tokens per second of consecutive rounds: each SSM drafts in turn, then the LLM
// takes one step. A step takes the simulated time of its operators, collectives and messages and,
// on workers, the round trip. Models do not run at the same time, so a round is the sum of its
// steps, and a step's time depends only on its own devices. Streamed weights take at least the time
// of their copies.
//
// A pipelined LLM works on as many steps at once as it has stages (serving/engine), each with its
// share of the requests, if no SSM is on workers. A round then takes the time of all shares on the
// busiest resource (a stage, or drafting in the coordinator), or one share's time through all of
// it, if that is longer.
//
// The search is exhaustive over degrees, and over devices up to equivalence: devices are sorted by
// speed, a model gets neighbors of one kind in that order (mixed kinds would communicate through
// host memory) among those with enough memory for its largest part, and identical devices are tried
// once. A choice with gaps uses a slower device in place of a faster one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/planner.h"

namespace espalier {

// One model, as two bound serving graphs (models/) with the same parameters. Both must outlive the
// search.
struct PlacedModel {
  std::string name;             // for error messages
  const Graph* full = nullptr;  // its largest step: determines memory
  const Graph* step = nullptr;  // a typical step: determines time
  double steps = 1;             // typical steps per round
  // Typical steps with 1/2, 1/3, ... of the requests, for concurrent steps. Empty: one step at a
  // time. All models must have equally many.
  std::vector<const Graph*> concurrent;
  // Bytes of each device that its parameters may take; the others stream (ServingLowering). 0: no
  // limit.
  int64_t resident_weight_bytes = 0;
};

struct ServingProblem {
  const OpRegistry* registry = nullptr;
  std::vector<PlacedModel> models;  // the LLM, then the SSMs
  Machine machine;                  // the workers; without a topology
  std::optional<v1::Device> own;    // the coordinator's process; none: no model runs there
  // Extra seconds of a step on workers: messages between coordinator and workers, without their
  // bytes over `machine.link`.
  double remote_seconds = 0;
  double tokens_per_round = 1;  // over all requests
  CostModel* cost = nullptr;
  int max_candidates = 12;
};

struct StepTimes {
  double seconds = 0;
  double busiest = 0;  // of the busiest device
};

// Where one model runs, with predicted time and memory.
struct PredictedPlacement {
  ServingDegrees degrees;
  std::vector<int> devices;  // of the machine, by rank; none: the coordinator's process
  double seconds = 0;        // of one step, if it is the only one
  // By number of concurrent steps, if more than 1: the times of one share's step.
  std::map<int, StepTimes> concurrent;
  std::vector<int64_t> bytes;  // by rank: the memory of its program

  bool own() const { return devices.empty(); }
};

struct ServingChoice {
  std::vector<PredictedPlacement> models;  // as in the problem; of a rejected choice the LLM only
  int concurrent_steps = 1;                // of the LLM
  double llm_seconds = 0;                  // per round; with concurrent steps, of one share
  double draft_seconds = 0;                // per round, of all SSMs
  double tokens_per_second = 0;
  std::string refused;  // why it cannot run, with bytes; empty if it can
};

// Predicts one model alone, on these devices in this order (none: the coordinator's process, with
// degrees of 1). Ignores memory limits. Returns InvalidArgument if the model cannot be split this
// way.
absl::StatusOr<PredictedPlacement> PredictPlacement(const ServingProblem& problem,
                                                    const PlacedModel& model,
                                                    const ServingDegrees& degrees,
                                                    const std::vector<int>& devices);

// Rejects a model on a device (or in the coordinator's process) whose remaining memory is smaller
// than its largest part, and a split whose weights cannot stream through their budget.
//
// Returns the best choices, best first: most tokens per second; then the fewest workers shared
// between models, whose loss would affect several; then the fewest workers; then the lowest
// degrees. After them, at most as many placements of the LLM that would be feasible with more
// memory. Returns ResourceExhausted, with bytes and remedies, if no choice fits; InvalidArgument
// for an invalid problem.
absl::StatusOr<std::vector<ServingChoice>> PlaceServing(const ServingProblem& problem);

}  // namespace espalier
