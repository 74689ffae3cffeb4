#include "planner/plan/fitting_optimum.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "planner/plan/planning.h"
#include "planner/search/exhaustive.h"

namespace espalier {
namespace {

struct Tried {
  Picoseconds time = 0;  // without what memory costs
  int planning = 0;
  Placement placement;
};

SearchSpace SpaceOf(Planning& planning) {
  return SearchSpace(planning.structure(), {.num_devices = planning.num_devices()});
}

}  // namespace

absl::StatusOr<FittingOptimum> FindFittingOptimum(const PlanProblem& problem,
                                                  const proto::MemoryOptions& memory,
                                                  const std::vector<int>& stages) {
  FittingOptimum best;
  std::vector<std::unique_ptr<Planning>> plannings;
  std::vector<Tried> all;
  for (int stage : stages) {
    absl::StatusOr<std::unique_ptr<Planning>> made = Planning::Make(
        problem, static_cast<int>(problem.machine.devices.size()), memory, {.zero_stage = stage});
    if (!made.ok()) return made.status();
    Planning& planning = **made;
    plannings.push_back(*std::move(made));
    Simulator simulator(planning.structure(), planning.table(), planning.costs());
    absl::Status status = ForEachPlacement(
        planning.structure(), SpaceOf(planning), planning.table(), &simulator, [&] {
          all.push_back(
              {simulator.time(), static_cast<int>(plannings.size()) - 1, simulator.placement()});
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
  }
  best.placements = static_cast<int64_t>(all.size());
  std::stable_sort(all.begin(), all.end(),
                   [](const Tried& a, const Tried& b) { return a.time < b.time; });
  for (const Tried& tried : all) {
    // Memory only adds to it.
    if (best.found && ToSeconds(tried.time) >= best.seconds) break;
    ++best.lowered;
    absl::StatusOr<Candidate> candidate =
        plannings[tried.planning]->Evaluate("tried", tried.placement);
    if (!candidate.ok()) return candidate.status();
    const double seconds = candidate->prediction.step_seconds();
    if (!candidate->refused.empty() || (best.found && seconds >= best.seconds)) continue;
    best.found = true;
    best.seconds = seconds;
    best.zero_stage = stages[tried.planning];
    best.made_to_fit = !candidate->memory.empty();
    const auto& peaks = candidate->prediction.peak_bytes();
    best.peak_bytes = *std::max_element(peaks.begin(), peaks.end());
  }
  return best;
}

absl::StatusOr<TightProblem> MakeTightProblem(uint64_t seed, double most_placements) {
  constexpr double kParts[] = {0.9, 0.75, 0.6, 0.45, 0.35};
  constexpr double kHosts[] = {6e9, 1e9, 3e10};  // bytes/s
  constexpr int kMostOperators = 9;
  TightProblem tight;
  const int devices = 2 + static_cast<int>(seed % 2);
  for (int operators = kMostOperators; operators > 0; --operators) {
    tight.small = RandomProblem(seed, devices, operators);
    const PlanProblem problem = tight.small.Problem();
    absl::StatusOr<std::unique_ptr<Planning>> made = Planning::Make(problem, devices, {}, {});
    if (!made.ok()) return made.status();
    if (CountPlacements(SpaceOf(**made)) <= most_placements) break;
  }
  tight.part = kParts[seed % std::size(kParts)];
  tight.options.set_micro_batches(1);
  proto::MemoryOptions& memory = *tight.options.mutable_memory();
  memory.set_host_bandwidth(kHosts[seed / std::size(kParts) % std::size(kHosts)]);
  memory.set_max_batch_slices(1);
  absl::StatusOr<FittingOptimum> ample =
      FindFittingOptimum(tight.small.Problem(), memory, /*stages=*/{0});
  if (!ample.ok()) return ample.status();
  tight.ample_seconds = ample->seconds;
  for (proto::Device& device : tight.small.machine.devices) {
    device.set_memory_bytes(
        static_cast<int64_t>(tight.part * static_cast<double>(ample->peak_bytes)));
  }
  absl::StatusOr<FittingOptimum> optimum =
      FindFittingOptimum(tight.small.Problem(), memory, {0, 1, 2, 3});
  if (!optimum.ok()) return optimum.status();
  tight.optimum = *optimum;
  return tight;
}

}  // namespace espalier
