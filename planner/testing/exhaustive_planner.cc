#include "planner/testing/exhaustive_planner.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "planner/plan/planning.h"
#include "planner/testing/exhaustive_search.h"

namespace espalier {
namespace {

struct Tried {
  Picoseconds time = 0;  // without the memory penalty
  int planning = 0;
  Placement placement;
};

constexpr int kStages[] = {0, 1, 2, 3};

SearchSpace SpaceOf(Planning& planning, const v1::SearchOptions& options) {
  SpaceOptions space;
  space.num_devices = planning.num_devices();
  space.parameter_parallel = !options.disable_parameter_parallel();
  space.attribute_parallel = !options.disable_attribute_parallel();
  return SearchSpace(planning.structure(), space);
}

absl::StatusOr<std::unique_ptr<Planning>> MakeAt(const PlanProblem& problem,
                                                 const v1::SearchOptions& options, int stage) {
  return Planning::Make(problem, static_cast<int>(problem.machine.devices.size()), options.memory(),
                        {.zero_stage = stage});
}

void LimitMemory(int64_t bytes, SmallProblem* small) {
  for (v1::Device& device : small->machine.devices) device.set_memory_bytes(bytes);
}

// Whether data parallelism or a single device fits.
absl::StatusOr<bool> SomethingFits(const SmallProblem& small, const v1::SearchOptions& options) {
  const PlanProblem problem = small.Problem();
  for (int stage : kStages) {
    absl::StatusOr<std::unique_ptr<Planning>> made = MakeAt(problem, options, stage);
    if (!made.ok()) return made.status();
    Planning& planning = **made;
    for (const Placement& placement : {planning.DataParallelPlacement(), planning.AllOn(0)}) {
      absl::StatusOr<Candidate> candidate = planning.Evaluate("tried", placement);
      if (!candidate.ok()) return candidate.status();
      if (candidate->refused.empty()) return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<ExhaustivePlan> PlanExhaustively(const PlanProblem& problem,
                                                const v1::SearchOptions& options,
                                                const std::vector<int>& stages) {
  ExhaustivePlan best;
  std::vector<std::unique_ptr<Planning>> plannings;
  std::vector<Tried> all;
  for (int stage : stages) {
    absl::StatusOr<std::unique_ptr<Planning>> made = MakeAt(problem, options, stage);
    if (!made.ok()) return made.status();
    Planning& planning = **made;
    plannings.push_back(*std::move(made));
    Simulator simulator(planning.structure(), planning.table(), planning.costs());
    absl::Status status = ForEachPlacement(
        planning.structure(), SpaceOf(planning, options), planning.table(), &simulator, [&] {
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
    // The memory penalty only adds to the time.
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

absl::StatusOr<LowMemoryProblem> MakeLowMemoryProblem(uint64_t seed, double most_placements) {
  constexpr double kParts[] = {0, 0.2, 0.4, 0.6, 0.8};
  constexpr double kHosts[] = {6e9, 1e9, 3e10};  // bytes/s
  constexpr int kMostOperators = 14;
  constexpr int kHalvings = 7;
  LowMemoryProblem tight;
  SmallProblem& small = tight.small;
  const bool tall = seed % 4 != 3;
  const int devices = tall ? 2 : 2 + static_cast<int>(seed / 4 % 2);
  tight.options.set_disable_attribute_parallel(tall);
  for (int operators = kMostOperators; operators > 0; --operators) {
    small = tall ? ActivationHeavyProblem(seed, operators)
                 : RandomProblem(seed / 4, devices, operators);
    absl::StatusOr<std::unique_ptr<Planning>> made = MakeAt(small.Problem(), tight.options, 0);
    if (absl::IsInvalidArgument(made.status())) return tight;  // a prefix without parameters
    if (!made.ok()) return made.status();
    if (CountPlacements(SpaceOf(**made, tight.options)) <= most_placements) break;
  }
  tight.options.set_micro_batches(1);
  v1::MemoryOptions& memory = *tight.options.mutable_memory();
  memory.set_host_bandwidth(kHosts[seed / std::size(kParts) % std::size(kHosts)]);
  memory.set_max_batch_tiles(1);
  absl::StatusOr<ExhaustivePlan> ample =
      PlanExhaustively(small.Problem(), tight.options, /*stages=*/{0});
  if (!ample.ok()) return ample.status();
  tight.ample_seconds = ample->seconds;
  int64_t least = 0, most = ample->peak_bytes;
  for (int i = 0; i < kHalvings; ++i) {
    const int64_t middle = least + (most - least) / 2;
    LimitMemory(middle, &small);
    absl::StatusOr<bool> fits = SomethingFits(small, tight.options);
    if (!fits.ok()) return fits.status();
    (*fits ? most : least) = middle;
  }
  tight.is_low = most < ample->peak_bytes;
  if (!tight.is_low) return tight;
  tight.part = kParts[seed % std::size(kParts)];
  LimitMemory(
      most + static_cast<int64_t>(tight.part * static_cast<double>(ample->peak_bytes - most)),
      &small);
  absl::StatusOr<ExhaustivePlan> optimum =
      PlanExhaustively(small.Problem(), tight.options, {std::begin(kStages), std::end(kStages)});
  if (!optimum.ok()) return optimum.status();
  tight.optimum = *optimum;
  return tight;
}

}  // namespace espalier
