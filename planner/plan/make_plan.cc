// MakePlanAtZeroStage (at_zero_stage.h).
#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/lowering/offload_recompute_pass.h"
#include "planner/parallel.h"
#include "planner/pcg/micro_batches.h"
#include "planner/plan/at_zero_stage.h"
#include "planner/plan/device_mesh.h"
#include "planner/plan/operator_search.h"
#include "planner/plan/pipeline_plan.h"
#include "planner/plan/planning.h"
#include "planner/proto/plan_proto.h"
#include "planner/search/pipeline_partition.h"

namespace espalier {
namespace {

absl::Status CheckProblem(const PlanProblem& problem, const v1::SearchOptions& options) {
  if (problem.registry == nullptr || problem.graph == nullptr) {
    return absl::InvalidArgumentError("planning needs a registry and a graph");
  }
  if (problem.machine.devices.empty()) {
    return absl::FailedPreconditionError(
        "there is no device to plan for; start a worker or name devices in the request");
  }
  if (options.max_devices() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("search.max_devices is ", options.max_devices(),
                                                   "; expected 0 (all) or more"));
  }
  if (options.has_budget() && (options.budget() < 1 || options.budget() > 100'000'000)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "search.budget is ", options.budget(),
        "; expected 1 to 100000000 proposals, or none (chosen by the size of the graph); for no "
        "search at all choose the strategy DATA_PARALLEL or SINGLE_DEVICE"));
  }
  if (!(options.alpha() >= 0) || options.alpha() > 1e9) {
    return absl::InvalidArgumentError(absl::StrCat(
        "search.alpha is ", options.alpha(), "; expected 0 (annealing) or more, at most 1e9"));
  }
  if (options.has_micro_batches() &&
      (options.micro_batches() < 1 || options.micro_batches() > kMaxMicroBatches)) {
    return absl::InvalidArgumentError(absl::StrCat("search.micro_batches is ",
                                                   options.micro_batches(), "; expected 1 to ",
                                                   kMaxMicroBatches, ", or none"));
  }
  if (options.pipeline_stages() < 0 || options.pipeline_stages() > kMostPipelineStages) {
    return absl::InvalidArgumentError(absl::StrCat("search.pipeline_stages is ",
                                                   options.pipeline_stages(),
                                                   "; expected 0 (none) to ", kMostPipelineStages));
  }
  if (options.pipeline_stages() > 1 && options.strategy() != v1::SearchOptions::SEARCH) {
    return absl::InvalidArgumentError(
        "search.pipeline_stages is set together with a strategy that has no stages; leave one out");
  }
  return absl::OkStatus();
}

// For "single device": the number of devices tried per criterion.
constexpr size_t kLikely = 2;

// Returns the faster one that fits; null if neither does.
const Candidate* Better(const Candidate* a, const Candidate* b) {
  if (a == nullptr || !a->refused.empty()) return b != nullptr && b->refused.empty() ? b : nullptr;
  if (b == nullptr || !b->refused.empty()) return a;
  return b->prediction.step_seconds() < a->prediction.step_seconds() ? b : a;
}

// Devices of which one is likely the best: measured devices of a real cluster all differ a little.
std::vector<int> LikelyDevices(const Machine& machine) {
  std::vector<int> different;  // the first of each class
  std::set<std::string> seen;
  for (size_t d = 0; d < machine.devices.size(); ++d) {
    if (seen.insert(DeviceClassOf(machine.devices[d])).second)
      different.push_back(static_cast<int>(d));
  }
  using Merit = std::function<double(const v1::Device&)>;
  const Merit merits[] = {[](const v1::Device& d) { return d.matmul_flops(); },
                          [](const v1::Device& d) { return d.memory_bandwidth(); },
                          [](const v1::Device& d) {  // 0: any size
                            return d.memory_bytes() > 0 ? static_cast<double>(d.memory_bytes())
                                                        : std::numeric_limits<double>::infinity();
                          },
                          // Overhead dominates in small graphs.
                          [](const v1::Device& d) { return -d.op_overhead_seconds(); }};
  std::set<int> likely;
  for (const Merit& merit : merits) {
    std::stable_sort(different.begin(), different.end(), [&](int a, int b) {
      return merit(machine.devices[a]) > merit(machine.devices[b]);
    });
    const size_t most = std::min<size_t>(different.size(), kLikely);
    likely.insert(different.begin(), different.begin() + static_cast<std::ptrdiff_t>(most));
  }
  return {likely.begin(), likely.end()};
}

absl::StatusOr<Candidate> BestSingleDevice(const PlanProblem& problem, Planning& planning) {
  std::optional<Candidate> best;
  for (int d : LikelyDevices(planning.machine())) {
    if (best.has_value() && problem.stop && problem.stop()) break;
    absl::StatusOr<Candidate> candidate = planning.Evaluate("single device", planning.AllOn(d));
    if (!candidate.ok()) return candidate.status();
    const bool fits = candidate->refused.empty();
    const bool best_fits = best.has_value() && best->refused.empty();
    if (!best.has_value() || (fits && !best_fits) ||
        (fits == best_fits &&
         candidate->prediction.step_seconds() < best->prediction.step_seconds())) {
      best = *std::move(candidate);
    }
  }
  return *std::move(best);
}

// The plan that a search starts from, and its pinned nodes.
struct Origin {
  Placement placement;
  std::vector<NodeConfig> pinned;  // by node, without devices if free; empty: none
};

absl::StatusOr<Origin> OriginOf(const PlanProblem& problem, const v1::Plan& plan,
                                Planning& planning) {
  if (absl::Status status = CheckPlanIsFor(*problem.graph, plan); !status.ok()) return status;
  if (plan.devices_size() > planning.num_devices()) {
    return absl::InvalidArgumentError(absl::StrCat("plan: it is for ", plan.devices_size(),
                                                   " devices; there are ", planning.num_devices()));
  }
  absl::StatusOr<std::vector<NodeConfig>> configs = ConfigsFromPlan(planning.structure(), plan);
  if (!configs.ok()) return configs.status();
  Origin origin;
  origin.placement = planning.FromConfigs(*configs);
  std::set<std::string> pinned;
  for (const v1::OperatorPlan& op : plan.operators()) {
    if (op.pinned()) pinned.insert(op.node());
  }
  if (pinned.empty()) return origin;
  origin.pinned.resize(configs->size());
  for (NodeId n : planning.structure().LiveNodes()) {
    if (pinned.count(planning.structure().graph().node(n).name) == 0) continue;
    origin.pinned[n] = (*configs)[n];
  }
  return origin;
}

// A searched or imported plan keeps its pins, so that the next search finds them.
void CopyPins(const v1::Plan& from, v1::Plan* to) {
  std::set<std::string> pinned;
  for (const v1::OperatorPlan& op : from.operators()) {
    if (op.pinned()) pinned.insert(op.node());
  }
  for (v1::OperatorPlan& op : *to->mutable_operators()) {
    if (pinned.count(op.node()) > 0) op.set_pinned(true);
  }
}

// A device mesh must be faster than a plan without one by this factor, because its prediction
// leaves out more.
constexpr double kMeshGain = 0.95;
// Up to so many devices the search over all operators covers the meshes of one stage.
constexpr int kMostSearchedDevices = 8;
// On more devices that search would take minutes and gigabytes, so only meshes are tried.
constexpr int kManyDevices = 16;
constexpr int kMeshesMade = 4;

// Returns the best mesh that fits, of one ZeRO stage or of all; nullopt if there is none or
// FlexFlow's own search is selected.
absl::StatusOr<std::optional<Pipeline>> FindMesh(const PlanProblem& problem,
                                                 const v1::SearchOptions& options, int num_devices,
                                                 std::vector<int> zero_stages) {
  if (num_devices == 1 || options.alpha() > 0) return std::optional<Pipeline>();
  SpaceOptions space;
  space.parameter_parallel = !options.disable_parameter_parallel();
  space.attribute_parallel = !options.disable_attribute_parallel();
  const bool few = num_devices <= kMostSearchedDevices;
  MeshPlanner planner(problem, num_devices, options.memory(), space, few ? 500 : 2000);
  const absl::StatusOr<OffloadSettings> settings = OffloadSettingsOf(options.memory());
  if (!settings.ok()) return settings.status();
  if (settings->swap || settings->recompute) planner.EnableOffloadPenalty(*settings);
  std::vector<MeshShape> shapes;
  for (int stage : zero_stages) {
    const std::vector<MeshShape> more = planner.Shapes(stage, options.micro_batches());
    shapes.insert(shapes.end(), more.begin(), more.end());
  }
  if (few) {
    std::erase_if(shapes, [](const MeshShape& s) { return s.stages == 1; });
  }
  absl::StatusOr<MeshPlan> best = planner.Best(shapes, kMeshesMade);
  if (absl::IsNotFound(best.status())) return std::optional<Pipeline>();
  if (!best.ok()) return best.status();
  absl::StatusOr<Candidate> candidate =
      best->planning->Evaluate(ToString(best->shape), best->placement);
  if (!candidate.ok()) return candidate.status();
  return std::optional<Pipeline>(Pipeline{std::move(best->planning), *std::move(candidate)});
}

}  // namespace

absl::StatusOr<v1::Plan> MakePlanAtZeroStage(const PlanProblem& problem,
                                             const v1::SearchOptions& options, int zero_stage,
                                             bool* memory_is_short) {
  if (absl::Status status = CheckProblem(problem, options); !status.ok()) return status;
  const double begin = problem.seconds ? problem.seconds() : 0;
  int num_devices = static_cast<int>(problem.machine.devices.size());
  if (options.max_devices() > 0) num_devices = std::min(num_devices, options.max_devices());
  // The pipeline's alternative without micro-batches.
  const bool pipeline = options.pipeline_stages() > 1;
  const int micro_batches = pipeline                      ? 1
                            : options.has_micro_batches() ? options.micro_batches()
                                                          : MicroBatchesOf(options.imported());
  const bool as_it_is = options.strategy() == v1::SearchOptions::IMPORTED;
  absl::StatusOr<std::unique_ptr<Planning>> made = Planning::Make(
      problem, num_devices, options.has_memory() ? options.memory() : options.imported().memory(),
      {.zero_stage = zero_stage,
       .micro_batches = micro_batches,
       .batch_tiles = as_it_is ? options.imported().batch_tiles() : 0});
  if (!made.ok()) return made.status();
  Planning& planning = **made;

  absl::StatusOr<Candidate> single = BestSingleDevice(problem, planning);
  if (!single.ok()) return single.status();
  absl::StatusOr<Candidate> data =
      planning.Evaluate("data parallel", planning.DataParallelPlacement());
  if (!data.ok()) return data.status();

  // Data parallelism needs the most memory of any device.
  const bool data_fits = data->refused.empty() && data->memory.empty();
  bool is_short = !data_fits;
  bool all_stages = false;  // all ZeRO stages were compared

  const Candidate* chosen = nullptr;
  Candidate own;
  SearchedPlans searched;
  Planning* of_chosen = &planning;
  Pipeline stages;
  v1::SearchSummary summary;
  switch (options.strategy()) {
    case v1::SearchOptions::SINGLE_DEVICE:
      chosen = &*single;
      break;
    case v1::SearchOptions::DATA_PARALLEL:
      chosen = &*data;
      break;
    case v1::SearchOptions::IMPORTED: {
      absl::StatusOr<Origin> imported = OriginOf(problem, options.imported(), planning);
      if (!imported.ok()) return imported.status();
      absl::StatusOr<Candidate> candidate = planning.Evaluate("imported", imported->placement);
      if (!candidate.ok()) return candidate.status();
      own = *std::move(candidate);
      chosen = &own;
      break;
    }
    case v1::SearchOptions::SEARCH: {
      Origin origin;
      if (options.has_imported()) {
        if (pipeline) {
          return absl::InvalidArgumentError(
              "search.pipeline_stages is set together with search.imported, whose stages are its "
              "own; leave one out");
        }
        absl::StatusOr<Origin> given = OriginOf(problem, options.imported(), planning);
        if (!given.ok()) return given.status();
        origin = *std::move(given);
      }
      if (pipeline) {
        absl::StatusOr<Pipeline> found = PlanPipeline(problem, num_devices, options, zero_stage);
        if (!found.ok()) return found.status();
        stages = *std::move(found);
        of_chosen = stages.planning.get();
        chosen = &stages.candidate;
        break;
      }
      std::vector<Placement> starts = {data->placement, single->placement};
      if (!options.disable_parameter_parallel()) {
        starts.push_back(planning.ParameterParallelPlacement());
      }
      if (options.has_imported()) starts.insert(starts.begin(), origin.placement);
      const bool by_operator =
          num_devices <= kManyDevices || options.has_budget() || options.has_imported();
      // If the plan is a mesh, all ZeRO stages are compared in one search.
      std::vector<int> mesh_stages = {zero_stage};
      if (memory_is_short != nullptr && !data_fits && !by_operator) {
        mesh_stages = {0, 1, 2, 3};
        all_stages = true;
      }
      absl::StatusOr<SearchedPlans> found = SearchedPlans{*data};
      absl::StatusOr<std::optional<Pipeline>> mesh = std::optional<Pipeline>();
      ForEachApart(problem, 2, [&](int i, const OwnProblem& apart) {
        if (i == 0 && by_operator) {
          found = SearchOperators(problem, options, starts, origin.pinned, planning, &summary);
        }
        // These ignore pins.
        if (i == 1 && origin.pinned.empty()) {
          mesh = FindMesh(*apart, options, num_devices, mesh_stages);
        }
      });
      if (!found.ok()) return found.status();
      searched = *std::move(found);
      is_short = is_short || searched.memory_is_short;
      own = std::move(searched.best);
      chosen = &own;
      if (!origin.pinned.empty()) break;
      chosen = Better(Better(&own, &*data), &*single);
      // A single device lacks only memory, so more memory would help, whatever else rules out
      // `own`.
      if (chosen == nullptr) chosen = own.lacks_memory ? &own : &*single;
      if (!mesh.ok()) return mesh.status();
      if (!mesh->has_value() || !(**mesh).candidate.refused.empty()) break;
      const double seconds = (**mesh).candidate.prediction.step_seconds();
      if (!chosen->refused.empty() || seconds < kMeshGain * chosen->prediction.step_seconds()) {
        stages = std::move(**mesh);
        of_chosen = stages.planning.get();
        chosen = &stages.candidate;
      }
      break;
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("search.strategy is ", static_cast<int>(options.strategy()),
                       "; expected SEARCH, DATA_PARALLEL, SINGLE_DEVICE or IMPORTED"));
  }
  if (memory_is_short != nullptr) {
    *memory_is_short =
        (is_short || !chosen->memory.empty()) && !(all_stages && chosen->refused.empty());
  }
  if (!chosen->refused.empty()) {
    auto verdict = [&](const Candidate& c) -> std::string {
      if (c.refused == chosen->refused) return "for the same reason";
      return c.refused.empty() ? "fits" : c.refused;
    };
    const std::string why =
        absl::StrCat("the ", chosen->name, " plan of graph '", problem.graph->name,
                     chosen->lacks_memory ? "' does not fit: " : "' cannot run: ", chosen->refused,
                     ". Data parallel: ", verdict(*data), ". Single device: ", verdict(*single));
    if (chosen->lacks_memory) {
      return absl::ResourceExhaustedError(
          absl::StrCat(why, ". Use a smaller batch, more devices, or devices with more memory"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        why, pipeline ? ". Leave out search.pipeline_stages: a plan without stages can keep them "
                        "together"
                      : ". Use the strategy SEARCH, with no operator pinned: it looks for a plan "
                        "that keeps them together"));
  }

  absl::StatusOr<v1::Plan> plan = of_chosen->ToPlan(*chosen);
  if (!plan.ok()) return plan.status();
  CopyPins(options.imported(), &*plan);
  const auto show = [&](const Candidate& candidate) {
    v1::Alternative* alternative = plan->add_alternatives();
    alternative->set_name(candidate.name);
    *alternative->mutable_prediction() = candidate.prediction;
    alternative->set_refused(candidate.refused);
  };
  show(*single);
  show(*data);
  for (const Candidate& candidate : searched.others) show(candidate);
  if (problem.seconds) summary.set_seconds(problem.seconds() - begin);
  *plan->mutable_search() = summary;
  if (problem.progress) problem.progress(1.0);
  return plan;
}

}  // namespace espalier
