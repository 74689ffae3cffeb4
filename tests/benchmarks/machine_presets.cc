// Plans for large machines: simulated step times of published models on a machine preset, of the
// planner's plan against data parallelism, ZeRO and a hand-made Megatron-LM mesh, with time and
// memory of the search. Runs no model; one simulator predicts all four.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic_cost.h"
#include "planner/machine/presets.h"
#include "planner/plan/device_mesh.h"
#include "planner/testing/zoo/zoo.h"
#include "server/jobs/search_threads.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/seconds.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(std::string, machine, "h200-cluster", "a preset");
ABSL_FLAG(std::string, devices, "1,8,64,1024", "how many");
ABSL_FLAG(std::string, models, "", "names, with commas; empty: all");
ABSL_FLAG(int64_t, budget, 2000, "proposals of each search within a group of devices");
ABSL_FLAG(int, full_simulations, 10, "mesh candidates to simulate fully");
ABSL_FLAG(int, threads, 0, "that search at one time; 0: as many as there are cores");
ABSL_FLAG(int, operator_search_max_devices, 0,
          "also run the per-operator search on at most this many devices");

namespace espalier {
namespace {

constexpr int kLastZeroStage = 3;

int FindAxis(const SplitRule& rule, AxisKind kind, int parts, size_t from = 0) {
  for (size_t a = from; a < rule.axes.size(); ++a) {
    if (rule.axes[a].kind == kind && rule.axes[a].size % parts == 0 && rule.axes[a].size > 0) {
      return static_cast<int>(a);
    }
  }
  return -1;
}

// Megatron-LM's tensor parallelism with sequence parallelism (Korthikanti et al., 2022): columns of
// the first product of a block, heads of the attention, rows of the second product, and everything
// between along the sequence. Outside transformers: parameters of linear layers, otherwise samples.
NodeConfig Megatron(const PcgStructure& structure, NodeId n, int tensor) {
  const SplitRule& rule = structure.nodes[n].rule;
  const Node& node = structure.graph().node(n);
  const bool rows = absl::StrContains(node.name, "output") || absl::StrContains(node.name, "down");
  int axis = -1;
  if (node.op == "linear" && rows) axis = FindAxis(rule, AxisKind::kReduction, tensor);
  if (axis < 0 && (node.op == "linear" || node.op == "embedding")) {
    axis = FindAxis(rule, AxisKind::kParameter, tensor);
  }
  for (size_t a = 0; a < rule.axes.size() && axis < 0 && node.op == "attention"; ++a) {
    const bool heads = absl::StrContains(rule.axes[a].name, "head");
    if (heads && rule.axes[a].size % tensor == 0) axis = static_cast<int>(a);
  }
  if (axis < 0) axis = FindAxis(rule, AxisKind::kAttribute, tensor);
  if (axis < 0 || rule.axes.size() < 2) axis = FindAxis(rule, AxisKind::kSample, tensor);
  NodeConfig config = OnDevice(rule, 0);
  if (axis < 0) return config;
  config.degrees[axis] = tensor;
  config.devices.clear();
  for (int d = 0; d < tensor; ++d) config.devices.push_back(d);
  return config;
}

struct Found {
  double seconds = 0;
  bool fits = false;
  double bytes = 0;  // maximum over devices
  std::string name;
};

Found Measured(const MeshPlan& plan) {
  Simulator simulator(plan.planning->structure(), plan.planning->table(), plan.planning->costs());
  Found found{.name = ToString(plan.shape)};
  if (!simulator.Reset(plan.placement).ok()) return found;
  found.seconds = ToSeconds(simulator.time());
  found.fits = simulator.cost() == simulator.time();
  for (int64_t bytes : simulator.EstimateMemory()) {
    found.bytes = std::max(found.bytes, static_cast<double>(bytes));
  }
  return found;
}

// Keeps the fastest plan that fits, or else the smallest.
void Keep(const absl::StatusOr<MeshPlan>& plan, std::optional<Found>* best) {
  if (!plan.ok()) return;
  const Found found = Measured(*plan);
  const bool better = !best->has_value() || (found.fits != (*best)->fits ? found.fits
                                             : found.fits ? found.seconds < (*best)->seconds
                                                          : found.bytes < (*best)->bytes);
  if (better) *best = found;
}

// Keeps the plan of the per-operator search if it is faster.
absl::Status KeepWhole(const PlanProblem& problem, std::optional<Found>* best) {
  v1::SearchOptions options;
  options.mutable_memory()->set_disable_swap(true);
  options.mutable_memory()->set_disable_recompute(true);
  const absl::StatusOr<v1::Plan> plan = MakePlan(problem, options);
  if (absl::IsResourceExhausted(plan.status())) return absl::OkStatus();
  if (!plan.ok()) return plan.status();
  const double seconds = plan->prediction().step_seconds();
  if (best->has_value() && (*best)->fits && (*best)->seconds <= seconds) return absl::OkStatus();
  const auto& peak = plan->prediction().peak_bytes();
  *best = Found{.seconds = seconds,
                .fits = true,
                .bytes = static_cast<double>(*std::max_element(peak.begin(), peak.end())),
                .name = "operator by operator"};
  return absl::OkStatus();
}

double PeakMiB() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

Cell Milliseconds(const std::optional<Found>& found) {
  if (!found.has_value()) return Text("-");
  return found->fits
             ? Number(1e3 * found->seconds, 1)
             : Text(absl::StrCat("needs ", static_cast<int64_t>(found->bytes / (1 << 30)), " GiB"));
}

absl::Status RunModel(const OpRegistry& registry, const ZooModel& model, int devices,
                      Report* report) {
  absl::StatusOr<Graph> graph = model.build(registry);
  if (!graph.ok()) return graph.status();
  const int64_t batch = model.batch_per_device * devices;
  if (absl::Status s = BindAndInfer(registry, batch, &*graph); !s.ok()) return s;
  absl::StatusOr<MachineModel> machine = PresetMachine(absl::GetFlag(FLAGS_machine), devices);
  if (!machine.ok()) return machine.status();
  AnalyticCost cost;
  PlanProblem problem;
  problem.registry = &registry;
  problem.graph = &*graph;
  problem.batch_size = batch;
  problem.machine.devices = machine->devices;
  problem.machine.topology = std::make_shared<const Topology>(machine->topology);
  problem.machine.name = machine->name;
  problem.optimizer.set_name("adam");
  problem.cost = &cost;
  SearchThreads threads(absl::GetFlag(FLAGS_threads));
  problem.for_each = [&threads](int count, const std::function<void(int)>& work) {
    threads.ForEach(count, work);
  };
  const int exact = absl::GetFlag(FLAGS_full_simulations);

  std::optional<Found> data, zero, hand, ours;
  {
    MeshPlanner by_hand(problem, devices, {}, {}, 0, Megatron);
    const auto only = [](std::vector<MeshShape> shapes, bool replicas) {
      std::erase_if(shapes,
                    [&](const MeshShape& s) { return replicas && (s.stages > 1 || s.tensor > 1); });
      return shapes;
    };
    for (int stage = 0; stage <= kLastZeroStage; ++stage) {
      const std::vector<MeshShape> shapes = by_hand.Shapes(stage, 0);
      std::optional<Found>& replicas = stage == 0 ? data : zero;
      for (const MeshShape& shape : only(shapes, true)) Keep(by_hand.Make(shape), &replicas);
      // Megatron-LM partitions the optimizer state at most (ZeRO stage 1).
      if (stage <= 1) Keep(by_hand.Best(only(shapes, false), exact), &hand);
    }
  }
  const double start = Seconds();
  MeshPlanner planner(problem, devices, {}, {}, absl::GetFlag(FLAGS_budget));
  std::vector<MeshShape> shapes;
  for (int stage = 0; stage <= kLastZeroStage; ++stage) {
    const std::vector<MeshShape> more = planner.Shapes(stage, 0);
    shapes.insert(shapes.end(), more.begin(), more.end());
  }
  Keep(planner.Best(shapes, exact), &ours);
  if (devices <= absl::GetFlag(FLAGS_operator_search_max_devices)) {
    if (absl::Status s = KeepWhole(problem, &ours); !s.ok()) return s;
  }
  const double seconds = Seconds() - start;
  double best = 0;
  for (const std::optional<Found>* made : {&data, &zero, &hand}) {
    if (!made->has_value() || !(*made)->fits) continue;
    if (best == 0 || (*made)->seconds < best) best = (*made)->seconds;
  }
  const auto ratio = [&](double other) {
    return other > 0 && ours.has_value() && ours->fits ? Number(other / ours->seconds, 2)
                                                       : Text("-");
  };
  report->Row({Text(model.name), Number(devices, 0), Number(static_cast<double>(batch), 0),
               Milliseconds(data), Milliseconds(zero), Milliseconds(hand), Milliseconds(ours),
               ratio(data.has_value() && data->fits ? data->seconds : 0), ratio(best),
               hand.has_value() ? Text(hand->name) : Text("-"),
               ours.has_value() ? Text(ours->name) : Text("-"),
               ours.has_value() ? Number(ours->bytes / (1 << 30), 1) : Text("-"),
               Number(seconds, 1), Number(PeakMiB(), 0)});
  return absl::OkStatus();
}

absl::Status Run(Report* report) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  report->Table(absl::StrCat("Simulated steps on ", absl::GetFlag(FLAGS_machine)),
                {"model", "devices", "batch", "data parallel ms", "ZeRO ms", "Megatron ms",
                 "ours ms", "over data parallel", "over the best by hand", "Megatron", "ours",
                 "GiB", "search s", "process MiB"});
  const std::vector<std::string> wanted =
      absl::StrSplit(absl::GetFlag(FLAGS_models), ',', absl::SkipEmpty());
  for (const ZooModel& model : Zoo()) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), model.name) == wanted.end()) {
      continue;
    }
    for (const auto& text : absl::StrSplit(absl::GetFlag(FLAGS_devices), ',')) {
      int devices = 0;
      if (!absl::SimpleAtoi(text, &devices)) {
        return absl::InvalidArgumentError("--devices expects numbers with commas");
      }
      if (absl::Status s = RunModel(registry, model, devices, report); !s.ok()) return s;
      std::fprintf(stderr, "%s on %d: done\n", model.name.c_str(), devices);
    }
  }
  report->Note(
      "f32 weights and activations, Adam, analytic operator costs at the preset's rates. Megatron: "
      "the best of all 3D meshes of pipeline stages, replicas and tensor-parallel parts with its "
      "own way of sharing operators, "
      "ZeRO stages 0 and 1. ZeRO: the fastest of stages 1 to 3. A plan that does not fit is given "
      "by what it needs.");
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("machine_presets");
  if (absl::Status status = espalier::Run(&report); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
