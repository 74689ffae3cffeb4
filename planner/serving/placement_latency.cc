#include "planner/serving/placement_latency.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/lowering/tensor_parallel_sharding.h"
#include "planner/machine/rates.h"
#include "planner/simulator/simulator.h"

namespace espalier {
namespace {

// Bytes that a step sends to the workers and gets back.
double WireBytes(const Graph& step) {
  double bytes = 0;
  for (const Value& value : step.values()) {
    if (value.kind == ValueKind::kInput) bytes += static_cast<double>(value.type.bytes());
  }
  for (const auto& [name, value] : step.outputs) {
    if (name == "logits") bytes += static_cast<double>(step.value(value).type.bytes());
  }
  return bytes;
}

// Predicts one step on the devices of `machine`.
absl::StatusOr<StepTimes> Simulate(const ServingProblem& problem, const Graph& step,
                                   const ServingDegrees& degrees, const Machine& machine) {
  const absl::StatusOr<ShardedServing> sharded =
      ShardServingGraph(*problem.registry, step, degrees);
  if (!sharded.ok()) return sharded.status();
  ConfigTable table(sharded->structure);
  // The tables also hold training costs, which are not used.
  v1::Optimizer any;
  any.set_name("sgd");
  CostTables costs(sharded->structure, table, machine, *problem.cost, any);
  Placement placement(sharded->structure.nodes.size(), nullptr);
  for (NodeId n : sharded->structure.LiveNodes()) placement[n] = table.Get(n, sharded->configs[n]);
  Simulator simulator(sharded->structure, table, costs);
  if (absl::Status status = simulator.Reset(placement); !status.ok()) return status;
  StepTimes times{.seconds = static_cast<double>(simulator.time()) * 1e-12};
  if (degrees.pipeline_parallel == 1) {
    times.busiest = times.seconds;
    return times;
  }
  std::vector<double> busy(machine.devices.size(), 0);
  for (const TimelineTask& task : simulator.MakeTimeline({}).tasks) {
    busy[static_cast<size_t>(task.device)] += task.end - task.begin;
  }
  times.busiest = *std::max_element(busy.begin(), busy.end());
  return times;
}

// Seconds in which these devices, by rank, copy streamed weights: the parts of a stage
// concurrently, stages in sequence. A copy reads memory and writes it.
StepTimes StreamTimes(const ServingDegrees& degrees, const std::vector<int64_t>& streamed,
                      const std::vector<v1::Device>& devices) {
  StepTimes times;
  for (int stage = 0; stage < degrees.pipeline_parallel; ++stage) {
    double slowest = 0;
    for (int part = 0; part < degrees.tensor_parallel; ++part) {
      const size_t r = static_cast<size_t>(stage * degrees.tensor_parallel + part);
      slowest = std::max(slowest, 2.0 * static_cast<double>(streamed[r]) /
                                      WithDefaults(devices[r]).memory_bandwidth());
    }
    times.seconds += slowest;
    times.busiest = std::max(times.busiest, slowest);
  }
  return times;
}

int Groups(const PlacedModel& model) { return static_cast<int>(model.concurrent.size()) + 1; }

bool DraftsInCoordinator(absl::Span<const PredictedPlacement> placements) {
  return std::all_of(placements.begin() + 1, placements.end(),
                     [](const PredictedPlacement& placed) { return placed.own(); });
}

// All models take their steps in sequence.
double SequentialSeconds(const ServingProblem& problem,
                         absl::Span<const PredictedPlacement> placements) {
  double seconds = 0;
  for (size_t m = 0; m < placements.size(); ++m)
    seconds += placements[m].seconds * problem.models[m].steps;
  return seconds;
}

}  // namespace

absl::StatusOr<MemoryNeeds> MemoryNeedsOf(const ServingProblem& problem, const PlacedModel& model,
                                          const ServingDegrees& degrees) {
  const absl::StatusOr<std::vector<v1::Program>> programs =
      LowerServing(*problem.registry, *model.full, degrees,
                   {.resident_weight_bytes = model.resident_weight_bytes});
  if (!programs.ok()) {
    return absl::Status(programs.status().code(),
                        absl::StrCat("model '", model.name, "': ", programs.status().message()));
  }
  MemoryNeeds needs;
  for (const v1::Program& program : *programs) {
    needs.bytes.push_back(program.arena_bytes());
    needs.streamed.push_back(program.host_bytes());
  }
  return needs;
}

absl::Status SetLatency(const ServingProblem& problem, const PlacedModel& model,
                        const std::vector<int64_t>& streamed, PredictedPlacement* placed) {
  const ServingDegrees& degrees = placed->degrees;
  Machine machine;
  machine.link = problem.machine.link;
  machine.communication = problem.machine.communication;
  const int there = static_cast<int>(problem.machine.devices.size());
  if (placed->own() ? !problem.own.has_value() || degrees.ranks() != 1
                    : static_cast<int>(placed->devices.size()) != degrees.ranks()) {
    return absl::InvalidArgumentError(absl::StrCat("placement: ", placed->devices.size(),
                                                   " devices for ", degrees.ranks(), " ranks"));
  }
  if (placed->own()) machine.devices = {*problem.own};
  for (int d : placed->devices) {
    if (d < 0 || d >= there) {
      return absl::InvalidArgumentError(absl::StrCat("placement: there is no device ", d));
    }
    machine.devices.push_back(problem.machine.devices[static_cast<size_t>(d)]);
  }
  // Memory is checked separately and exactly.
  for (v1::Device& device : machine.devices) device.clear_memory_bytes();
  const StepTimes streaming = StreamTimes(degrees, streamed, machine.devices);
  const auto times_of = [&](const Graph& step) -> absl::StatusOr<StepTimes> {
    absl::StatusOr<StepTimes> times = Simulate(problem, step, degrees, machine);
    if (!times.ok()) return times;
    times->seconds = std::max(times->seconds, streaming.seconds);
    times->busiest = std::max(times->busiest, streaming.busiest);
    if (placed->own()) return times;
    times->seconds += problem.remote_seconds +
                      TransferSeconds(WithDefaults(problem.machine.link), WireBytes(step));
    return times;
  };
  const absl::StatusOr<StepTimes> whole = times_of(*model.step);
  if (!whole.ok()) return whole.status();
  placed->seconds = whole->seconds;
  // The coordinator's process may have as many groups as an LLM elsewhere.
  const int least = placed->own() ? 2 : std::max(2, degrees.pipeline_parallel);
  const int most = placed->own() ? Groups(model) : degrees.pipeline_parallel;
  for (int groups = std::min(least, Groups(model)); groups <= std::min(most, Groups(model));
       ++groups) {
    if (groups < 2) continue;
    const absl::StatusOr<StepTimes> times =
        times_of(*model.concurrent[static_cast<size_t>(groups) - 2]);
    if (!times.ok()) return times.status();
    placed->concurrent[groups] = *times;
  }
  return absl::OkStatus();
}

RoundLatency RoundLatencyOf(const ServingProblem& problem,
                            absl::Span<const PredictedPlacement> placements) {
  const PredictedPlacement& llm = placements[0];
  RoundLatency round;
  if (llm.own() || llm.concurrent.empty() || !DraftsInCoordinator(placements)) {
    round.seconds = SequentialSeconds(problem, placements);
    round.llm_seconds = llm.seconds * problem.models[0].steps;
    round.draft_seconds = round.seconds - round.llm_seconds;
    return round;
  }
  const auto& [groups, times] = *llm.concurrent.begin();
  round.concurrent_steps = groups;
  round.llm_seconds = times.seconds * problem.models[0].steps;
  for (size_t m = 1; m < placements.size(); ++m) {
    round.draft_seconds += placements[m].concurrent.at(groups).seconds * problem.models[m].steps;
  }
  // The busiest resource, a stage or the coordinator, runs once per group; no group is faster than
  // its own path through all resources.
  const double turn = std::max(times.busiest * problem.models[0].steps, round.draft_seconds);
  round.seconds = std::max(groups * turn, round.llm_seconds + round.draft_seconds);
  return round;
}

double MinRoundLatency(const ServingProblem& problem,
                       absl::Span<const PredictedPlacement> placements) {
  return std::min(RoundLatencyOf(problem, placements).seconds,
                  SequentialSeconds(problem, placements));
}

}  // namespace espalier
