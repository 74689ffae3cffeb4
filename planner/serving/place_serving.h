// Where the models of speculative serving run: the LLM and each of the small models that draft for
// it in the coordinator's process, on one worker, or cut over several (ServingDegrees). A worker
// may have parts of several of them, as far as its memory goes. One search for all of them, by the
// cost model of training.
//
// What is compared are tokens per second of rounds that follow each other: drafting by one small
// model after the other, then one step of the LLM. A step takes what the simulator says of its
// operators, collectives and messages, and, on workers, the way there and back. Models do not run
// at the same time, so a round takes the sum of its steps, and what each takes depends on its own
// devices alone, whatever else these hold. Weights that stream from the host take at least the time
// of their copies.
//
// An LLM in stages works on as many steps at once (serving/engine), each of its share of the
// requests, if none of the small models is on workers. Then a round is as long as all shares take
// with what is busiest, a stage or the drafting of the coordinator, or as one share takes on its
// way through all of it, if that is longer.
//
// The search is exhaustive over degrees, and over devices as far as these matter: devices stand in
// the order of their speed, a model gets neighbours of one kind in that order (a mixture of kinds
// sends everything through the hosts' memory) among those that have room left for its largest part,
// and devices that are alike are tried once. A choice with gaps has a slower device in the place of
// a faster one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/planner.h"

namespace espalier {

// One model, as two bound serving graphs (models) of the same parameters. Both outlive the
// search.
struct PlacedModel {
  std::string name;             // for messages
  const Graph* full = nullptr;  // of its largest step: what devices must hold
  const Graph* step = nullptr;  // of an expected one: what it takes
  double steps = 1;             // such steps in one round
  // Likewise, of the share of the requests that one of 2, 3, ... steps at once has. Empty: there is
  // one step at a time. Of all models as many.
  std::vector<const Graph*> concurrent;
  // What its parameters may take of each device: the others stream (ServingLowering). 0: all stay.
  int64_t resident_weight_bytes = 0;
};

struct ServingProblem {
  const OpRegistry* registry = nullptr;
  std::vector<PlacedModel> models;   // the LLM, then the small ones
  Machine machine;                   // the workers; without a topology
  std::optional<v1::Device> own;  // the coordinator's process; none: no model runs there
  // Seconds that a step on workers takes longer than its programs: messages between coordinator and
  // workers, besides their bytes over `machine.link`.
  double remote_seconds = 0;
  double tokens_per_round = 1;  // of all requests together
  CostModel* cost = nullptr;
  int most_candidates = 12;
};

struct StepTimes {
  double seconds = 0;
  double busiest = 0;  // of them, of the device that works longest
};

// Where one model runs.
struct PredictedPlacement {
  ServingDegrees degrees;
  std::vector<int> devices;  // of the machine, by rank; none: the coordinator's process
  double seconds = 0;        // of one step, while it is the only one
  // By the steps at once, more than 1, that it may have there: of a step of its share.
  std::map<int, StepTimes> concurrent;
  std::vector<int64_t> bytes;  // by rank: what its program keeps and works in on the device

  bool own() const { return devices.empty(); }
};

struct ServingChoice {
  std::vector<PredictedPlacement> models;  // as in the problem; of a refused one the LLM's alone
  int concurrent_steps = 1;            // of the LLM
  double llm_seconds = 0;           // of one round; of several steps at once, one's part in it
  double draft_seconds = 0;         // likewise, of all small models
  double tokens_per_second = 0;
  std::string refused;  // why it cannot run, with bytes; empty if it can
};

// One model alone, on these devices in this order (none: the coordinator's process; degrees are
// then 1). InvalidArgument where it cannot be cut so; memory is not looked at.
absl::StatusOr<PredictedPlacement> PredictPlacement(const ServingProblem& problem, const PlacedModel& model,
                                        const ServingDegrees& degrees,
                                        const std::vector<int>& devices);

// What is refused: a model on a worker, or in the coordinator's process, where what others have
// there leaves less memory than its largest part needs; a cut whose weights cannot stream through
// what they may take.
//
// The best choices, the best one first: most tokens per second; of equals the one in which the
// fewest workers are shared, whose loss would be that of several models; of those the one with the
// fewest workers, then the one that comes first by degrees. Behind them, places of the LLM that
// would do if they had the memory, at most as many. ResourceExhausted with bytes, and what would
// help, if no choice fits; InvalidArgument for a problem that makes no sense.
absl::StatusOr<std::vector<ServingChoice>> PlaceServing(const ServingProblem& problem);

}  // namespace espalier
