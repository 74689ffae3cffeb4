#include "planner/plan/plan_pareto.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/parallel.h"
#include "planner/plan/at_zero_stage.h"
#include "planner/plan/device_mesh.h"
#include "planner/plan/planning.h"
#include "planner/search/elimination.h"

namespace espalier {
namespace {

constexpr int kLastZeroStage = 3;
constexpr int kMostParetoDevices = 16;   // searches placements; on more devices, meshes
constexpr int kPlacements = 12;          // placements at each stage
constexpr int kMeshes = 8;               // meshes: the fastest, and as many with the least memory
constexpr int kMeshBudget = 500;         // proposals
constexpr double kSame = 1e-6;           // of a step's time
constexpr double kMostOffloaded = 2000;  // operators times devices
constexpr double kOffloaded[] = {0.8, 0.6, 0.45, 0.35};  // of a plan's memory

struct Point {
  double seconds = 0;
  int64_t bytes = 0;  // on the device that needs most
  bool fits = false;  // as estimated
  std::string name;
  StepConfig shape;
  std::vector<NodeConfig> configs;  // empty: not a starting point
};

int64_t Most(const std::vector<int64_t>& bytes) {
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}

using Placements = std::vector<std::vector<NodeConfig>>;

class ParetoPlanner {
 public:
  ParetoPlanner(const PlanProblem& problem, const v1::SearchOptions& options)
      : problem_(problem), options_(options) {
    devices_ = static_cast<int>(problem.machine.devices.size());
    if (options.max_devices() > 0) devices_ = std::min(devices_, options.max_devices());
  }

  // Adds a point unless another beats it.
  absl::Status Fill() {
    if (absl::Status s = devices_ <= kMostParetoDevices ? AddPlacements() : AddMeshes(); !s.ok())
      return s;
    KeepPareto();
    if (absl::Status s = AddOffloaded(); !s.ok()) return s;
    KeepPareto();
    return absl::OkStatus();
  }

  void Add(Point point) { points_.push_back(std::move(point)); }

  void KeepPareto() {
    std::stable_sort(points_.begin(), points_.end(), [](const Point& a, const Point& b) {
      return std::pair(a.seconds, a.bytes) < std::pair(b.seconds, b.bytes);
    });
    std::vector<Point> kept;
    for (Point& point : points_) {
      if (kept.empty() || point.bytes < kept.back().bytes) kept.push_back(std::move(point));
    }
    points_ = std::move(kept);
  }

  const std::vector<Point>& points() const { return points_; }

  // Writes the front into `plan`, with the time and memory that the plan was lowered to: replaces
  // the point estimated for it, if there is one.
  void List(double seconds, int64_t bytes, const std::string& name, v1::Plan* plan) const {
    bool listed = false;
    const auto add = [&](double s, int64_t b, const std::string& n, bool chosen) {
      v1::ParetoPoint* out = plan->add_pareto_front();
      out->set_step_seconds(s);
      out->set_peak_bytes(b);
      out->set_name(n);
      out->set_chosen(chosen);
      listed = listed || chosen;
    };
    for (const Point& point : points_) {
      const bool same = std::abs(point.seconds - seconds) <= kSame * seconds;
      if (!listed && !same && point.seconds > seconds) add(seconds, bytes, name, true);
      // Remove the points that the plan beats.
      if (!same && point.seconds > seconds && point.bytes >= bytes) continue;
      add(point.seconds, point.bytes, point.name, same && !listed);
    }
    if (!listed) add(seconds, bytes, name, true);
  }

  // The plan of a point; ResourceExhausted if it cannot run, usually because its memory was
  // estimated too low.
  absl::StatusOr<v1::Plan> PlanOf(const Point& point) const {
    absl::StatusOr<std::unique_ptr<Planning>> made =
        Planning::Make(problem_, devices_, options_.memory(), point.shape);
    if (!made.ok()) return made.status();
    absl::StatusOr<Candidate> candidate =
        (*made)->Evaluate(point.name, (*made)->FromConfigs(point.configs));
    if (!candidate.ok()) return candidate.status();
    if (!candidate->refused.empty()) return absl::ResourceExhaustedError(candidate->refused);
    return (*made)->ToPlan(*candidate);
  }

 private:
  std::vector<int> ZeroStages() const {
    if (options_.has_zero_stage()) return {options_.zero_stage()};
    std::vector<int> stages = {0};
    for (int stage = 1; stage <= kLastZeroStage && devices_ > 1; ++stage) stages.push_back(stage);
    return stages;
  }

  std::vector<int> MicroBatches() const {
    if (options_.has_micro_batches()) return {options_.micro_batches()};
    return {1, 2, 4, 8};
  }

  absl::Status AddPlacements() {
    const std::vector<int> stages = ZeroStages();
    const std::set<int> ends = {stages.front(), stages.back()};
    std::vector<Placements> of_end(ends.size());
    std::vector<absl::Status> statuses(ends.size());
    ForEachApart(problem_, static_cast<int>(ends.size()), [&](int i, const OwnProblem& own) {
      statuses[i] = AddParetoOf(*own, *std::next(ends.begin(), i), &of_end[i]);
    });
    Placements placements;
    for (size_t i = 0; i < ends.size(); ++i) {
      if (!statuses[i].ok()) return statuses[i];
      placements.insert(placements.end(), of_end[i].begin(), of_end[i].end());
    }
    std::vector<std::vector<Point>> points(stages.size());
    statuses.assign(stages.size(), absl::OkStatus());
    ForEachApart(problem_, static_cast<int>(stages.size()), [&](int i, const OwnProblem& own) {
      statuses[i] = AddAtStage(*own, stages[i], placements, &points[i]);
    });
    for (size_t i = 0; i < stages.size(); ++i) {
      if (!statuses[i].ok()) return statuses[i];
      points_.insert(points_.end(), points[i].begin(), points[i].end());
    }
    return absl::OkStatus();
  }

  // Tries all for the whole batch; for micro-batches those on the stage's own front.
  absl::Status AddAtStage(const PlanProblem& problem, int stage, Placements left,
                          std::vector<Point>* points) const {
    for (int parts : MicroBatches()) {
      absl::StatusOr<std::unique_ptr<Planning>> made = Planning::Make(
          problem, devices_, options_.memory(), {.zero_stage = stage, .micro_batches = parts});
      // The batch cannot be cut into that many.
      if (absl::IsInvalidArgument(made.status()) && parts > 1) continue;
      if (!made.ok()) return made.status();
      ParetoPlanner of_stage(problem, options_);
      for (const std::vector<NodeConfig>& configs : left) {
        absl::StatusOr<std::optional<Point>> point = Simulate(**made, configs, {stage, parts}, "");
        if (!point.ok()) return point.status();
        if (point->has_value()) of_stage.Add(**std::move(point));
      }
      of_stage.KeepPareto();
      left.clear();
      for (const Point& point : of_stage.points_) {
        left.push_back(point.configs);
        points->push_back(point);
      }
      if (problem.stop && problem.stop()) break;
    }
    return absl::OkStatus();
  }

  absl::Status AddParetoOf(const PlanProblem& problem, int stage, Placements* placements) const {
    absl::StatusOr<std::unique_ptr<Planning>> made =
        Planning::Make(problem, devices_, options_.memory(), {.zero_stage = stage});
    if (!made.ok()) return made.status();
    Planning& planning = **made;
    SpaceOptions space;
    space.num_devices = devices_;
    space.parameter_parallel = !options_.disable_parameter_parallel();
    space.attribute_parallel = !options_.disable_attribute_parallel();
    absl::StatusOr<std::vector<ParetoPlacement>> front = ParetoPlacements(
        SearchSpace(planning.structure(), space), planning.table(), planning.costs(),
        planning.DataParallelPlacement(), kPlacements, problem.stop);
    if (!front.ok()) return front.status();
    std::vector<Placement> all = {planning.DataParallelPlacement(), planning.AllOn(0)};
    for (ParetoPlacement& found : *front) all.push_back(std::move(found.placement));
    for (const Placement& placement : all) {
      std::vector<NodeConfig>& configs = placements->emplace_back(placement.size());
      for (NodeId n : planning.structure().LiveNodes()) configs[n] = placement[n]->config;
    }
    return absl::OkStatus();
  }

  // Skip if the smaller batch does not allow it.
  absl::StatusOr<std::optional<Point>> Simulate(Planning& planning,
                                                const std::vector<NodeConfig>& configs,
                                                const StepConfig& shape, std::string name) const {
    const PcgStructure& structure = planning.structure();
    size_t split = 0;
    for (NodeId n : structure.LiveNodes()) {
      if (!CheckConfig(structure.nodes[n].rule, configs[n], devices_).ok()) {
        return std::optional<Point>();
      }
      split = std::max(split, configs[n].devices.size());
    }
    Simulator simulator(structure, planning.table(), planning.costs());
    if (absl::Status s = simulator.Reset(planning.FromConfigs(configs)); !s.ok()) return s;
    if (name.empty()) {
      name = absl::StrCat("up to ", split, split == 1 ? " part" : " parts");
      if (shape.micro_batches > 1) {
        absl::StrAppend(&name, ", ", shape.micro_batches, " micro-batches");
      }
      if (shape.zero_stage > 0) absl::StrAppend(&name, ", ZeRO ", shape.zero_stage);
    }
    return std::optional<Point>({ToSeconds(simulator.time()), Most(simulator.EstimateMemory()),
                                 simulator.cost() == simulator.time(), std::move(name), shape,
                                 configs});
  }

  absl::Status AddMeshes() {
    SpaceOptions space;
    space.parameter_parallel = !options_.disable_parameter_parallel();
    space.attribute_parallel = !options_.disable_attribute_parallel();
    MeshPlanner planner(problem_, devices_, options_.memory(), space, kMeshBudget);
    std::vector<MeshShape> shapes;
    for (int stage : ZeroStages()) {
      const int parts = options_.has_micro_batches() ? options_.micro_batches() : 0;
      const std::vector<MeshShape> more = planner.Shapes(stage, parts);
      shapes.insert(shapes.end(), more.begin(), more.end());
    }
    planner.Prepare(shapes);
    std::vector<MeshEstimate> all;
    for (const MeshShape& shape : shapes) {
      absl::StatusOr<MeshEstimate> estimate = planner.Estimate(shape);
      if (estimate.ok()) all.push_back(*std::move(estimate));
    }
    // Evenly spaced points of the estimated front.
    std::stable_sort(all.begin(), all.end(), [](const MeshEstimate& a, const MeshEstimate& b) {
      return std::pair(a.seconds, a.bytes) < std::pair(b.seconds, b.bytes);
    });
    std::vector<MeshEstimate> front;
    for (const MeshEstimate& estimate : all) {
      if (front.empty() || estimate.bytes < front.back().bytes) front.push_back(estimate);
    }
    const size_t most = 2 * kMeshes;
    const size_t made = std::min(most, front.size());
    std::vector<MeshShape> chosen;
    for (size_t i = 0; i < made; ++i) {
      chosen.push_back(front[made < 2 ? 0 : i * (front.size() - 1) / (made - 1)].shape);
    }
    std::vector<absl::StatusOr<std::optional<Point>>> points(made, std::optional<Point>());
    planner.MakeEach(chosen, [&](int i, absl::StatusOr<MeshPlan> plan) {
      if (!plan.ok()) return;  // the smaller batch does not allow a split
      std::vector<NodeConfig> configs(plan->placement.size());
      for (NodeId n : plan->planning->structure().LiveNodes()) {
        configs[n] = plan->placement[n]->config;
      }
      const StepConfig shape = {plan->shape.zero_stage, plan->shape.micro_batches};
      points[i] = Simulate(*plan->planning, configs, shape, ToString(plan->shape));
    });
    for (absl::StatusOr<std::optional<Point>>& point : points) {
      if (!point.ok()) return point.status();
      if (point->has_value()) Add(**std::move(point));
    }
    return absl::OkStatus();
  }

  // Variants of a plan with less memory, by swaps and recomputation.
  absl::Status AddOffloaded() {
    const v1::MemoryOptions& memory = options_.memory();
    const double size = static_cast<double>(problem_.graph->nodes().size()) * devices_;
    if ((memory.disable_swap() && memory.disable_recompute()) || size > kMostOffloaded) {
      return absl::OkStatus();
    }
    std::vector<Point> plans;
    for (const Point& point : points_) {
      if (!point.configs.empty()) plans.push_back(point);
    }
    if (plans.empty()) return absl::OkStatus();
    if (plans.size() > 2) plans = {plans.front(), plans.back()};
    std::vector<std::vector<Point>> points(plans.size());
    std::vector<absl::Status> statuses(plans.size());
    ForEachApart(problem_, static_cast<int>(plans.size()), [&](int i, const OwnProblem& own) {
      statuses[i] = AddOffloadedOf(*own, plans[i], &points[i]);
    });
    for (size_t i = 0; i < plans.size(); ++i) {
      if (!statuses[i].ok()) return statuses[i];
      points_.insert(points_.end(), points[i].begin(), points[i].end());
    }
    return absl::OkStatus();
  }

  absl::Status AddOffloadedOf(const PlanProblem& problem, const Point& point,
                              std::vector<Point>* points) const {
    for (double fraction : kOffloaded) {
      PlanProblem limited = problem;
      for (v1::Device& device : limited.machine.devices) {
        device.set_memory_bytes(static_cast<int64_t>(fraction * static_cast<double>(point.bytes)));
      }
      absl::StatusOr<std::unique_ptr<Planning>> made =
          Planning::Make(limited, devices_, options_.memory(), point.shape);
      if (!made.ok()) return made.status();
      absl::StatusOr<Candidate> candidate =
          (*made)->Evaluate(point.name, (*made)->FromConfigs(point.configs));
      if (!candidate.ok()) return candidate.status();
      // Smaller limits cannot be met either.
      if (!candidate->refused.empty()) break;
      int64_t bytes = 0;
      for (int64_t peak : candidate->prediction.peak_bytes()) bytes = std::max(bytes, peak);
      points->push_back({candidate->prediction.step_seconds(),
                         bytes,
                         false,
                         absl::StrCat(point.name, ", swaps and recomputation"),
                         point.shape,
                         {}});
    }
    return absl::OkStatus();
  }

  const PlanProblem& problem_;
  const v1::SearchOptions& options_;
  int devices_ = 0;
  std::vector<Point> points_;
};

}  // namespace

absl::StatusOr<v1::Plan> MakeParetoPlan(const PlanProblem& problem,
                                        const v1::SearchOptions& options) {
  const double begin = problem.seconds ? problem.seconds() : 0;
  absl::StatusOr<v1::Plan> best = MakePlanOfGraph(problem, options);
  if (!best.ok() && !absl::IsResourceExhausted(best.status())) return best;
  ParetoPlanner front(problem, options);
  if (absl::Status s = front.Fill(); !s.ok()) return s;
  std::string chosen = "searched";
  // Points of the front ignore pins.
  const auto& given = options.imported().operators();
  const bool pinned = std::any_of(given.begin(), given.end(),
                                  [](const v1::OperatorPlan& op) { return op.pinned(); });
  for (const Point& point : front.points()) {
    if (pinned) break;
    if (!point.fits || point.configs.empty()) continue;
    if (best.ok() && best->prediction().step_seconds() <= point.seconds) break;
    absl::StatusOr<v1::Plan> plan = front.PlanOf(point);
    if (absl::IsResourceExhausted(plan.status())) continue;
    if (!plan.ok()) return plan;
    if (best.ok() && best->prediction().step_seconds() <= plan->prediction().step_seconds()) {
      continue;
    }
    if (best.ok()) {
      *plan->mutable_alternatives() = best->alternatives();
      *plan->mutable_search() = best->search();
    }
    chosen = point.name;
    best = std::move(plan);
    break;
  }
  if (!best.ok()) return best;
  int64_t bytes = 0;
  for (int64_t peak : best->prediction().peak_bytes()) bytes = std::max(bytes, peak);
  front.List(best->prediction().step_seconds(), bytes, chosen, &*best);
  if (problem.seconds) best->mutable_search()->set_seconds(problem.seconds() - begin);
  return best;
}

}  // namespace espalier
