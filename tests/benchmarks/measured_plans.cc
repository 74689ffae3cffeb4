#include "tests/benchmarks/measured_plans.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/plans/in_process_training.h"

namespace espalier {
namespace {

using Kinds = std::vector<AxisKind>;

struct Recipe {
  std::string name;
  int devices = 1;
  std::function<absl::StatusOr<v1::Plan>(PlanProblem&)> make;
};

absl::StatusOr<v1::Plan> Searched(PlanProblem& problem, v1::SearchOptions::Strategy strategy,
                                  int stages = 0, int micro_batches = 1) {
  v1::SearchOptions options;
  options.set_strategy(strategy);
  options.set_zero_stage(0);
  options.set_pipeline_stages(stages);
  options.set_micro_batches(micro_batches);
  options.set_budget(500);
  return MakePlan(problem, options);
}

absl::StatusOr<v1::Plan> SplitBy(PlanProblem& problem, const Kinds& kinds) {
  const int parts = static_cast<int>(problem.machine.devices.size());
  return ManualPlan(problem, [&](int index, const Node&, const SplitRule& rule) {
    return SplitFirst(index, rule, kinds, parts);
  });
}

absl::StatusOr<v1::Plan> InConsecutiveParts(PlanProblem& problem) {
  const int parts = static_cast<int>(problem.machine.devices.size());
  const int nodes = static_cast<int>(problem.graph->nodes().size());
  return ManualPlan(problem, [=](int index, const Node&, const SplitRule&) {
    return Choice{{}, {std::min(parts - 1, index * parts / nodes)}};
  });
}

absl::StatusOr<v1::Plan> Mixed(PlanProblem& problem) {
  return ManualPlan(problem, [](int index, const Node&, const SplitRule& rule) {
    const Kinds kinds[] = {{AxisKind::kSample},
                           {AxisKind::kParameter, AxisKind::kAttribute},
                           {},
                           {AxisKind::kReduction, AxisKind::kSample}};
    return SplitFirst(index, rule, kinds[index % 4], 2);
  });
}

// With less memory than the plan needs, so that it must swap or recompute.
absl::StatusOr<v1::Plan> InLessMemory(PlanProblem& problem, double part) {
  absl::StatusOr<v1::Plan> whole = Searched(problem, v1::SearchOptions::SINGLE_DEVICE);
  if (!whole.ok()) return whole.status();
  const int64_t bytes =
      static_cast<int64_t>(part * static_cast<double>(whole->prediction().peak_bytes(0)));
  for (v1::Device& device : problem.machine.devices) device.set_memory_bytes(bytes);
  return Searched(problem, v1::SearchOptions::SINGLE_DEVICE);
}

std::vector<Recipe> Recipes(bool cuts_batch) {
  using Options = v1::SearchOptions;
  const auto data_parallel = [](PlanProblem& p) { return Searched(p, Options::DATA_PARALLEL); };
  const auto zero = [data_parallel](int stage) {
    return [=](PlanProblem& p) { return WithZeroStage(p, data_parallel(p), stage); };
  };
  const auto split = [](const Kinds& kinds) {
    return [=](PlanProblem& p) { return SplitBy(p, kinds); };
  };
  const auto pipeline = [](int micro_batches) {
    return [=](PlanProblem& p) {
      return Searched(p, Options::SEARCH, static_cast<int>(p.machine.devices.size()),
                      micro_batches);
    };
  };
  std::vector<Recipe> recipes = {
      {"single device", 1, [](PlanProblem& p) { return Searched(p, Options::SINGLE_DEVICE); }},
      {"in 70 % of the memory", 1, [](PlanProblem& p) { return InLessMemory(p, 0.7); }},
      {"data parallel", 2, data_parallel},
      {"parameter parallel", 2, split({AxisKind::kParameter, AxisKind::kSample})},
      {"attribute parallel", 2, split({AxisKind::kAttribute, AxisKind::kSample})},
      {"reduction parallel", 2, split({AxisKind::kReduction, AxisKind::kSample})},
      {"operators in turn", 2,
       [](PlanProblem& p) {
         return ManualPlan(p, [](int index, const Node&, const SplitRule&) {
           return Choice{{}, {index % 2}};
         });
       }},
      {"two halves", 2, InConsecutiveParts},
      {"mixed", 2, Mixed},
      {"ZeRO 3", 2, zero(3)},
      {"data parallel", 3, data_parallel},
      {"three thirds", 3, InConsecutiveParts},
      {"data parallel", 4, data_parallel},
      {"samples x parameters", 4,
       [](PlanProblem& p) {
         return ManualPlan(p, [](int index, const Node&, const SplitRule& rule) {
           return SamplesByParameters(index, rule);
         });
       }},
      {"ZeRO 1", 4, zero(1)},
  };
  if (cuts_batch) {
    recipes.push_back({"pipeline, 4 micro-batches", 2, pipeline(4)});
    recipes.push_back({"pipeline, 6 micro-batches", 3, pipeline(6)});
    recipes.push_back({"pipeline, 12 micro-batches", 4, pipeline(12)});
  }
  return recipes;
}

bool Alike(const v1::Plan& a, const v1::Plan& b) {
  if (a.devices_size() != b.devices_size() || a.operators_size() != b.operators_size() ||
      a.zero_stage() != b.zero_stage() || a.micro_batches() != b.micro_batches() ||
      a.devices(0).memory_bytes() != b.devices(0).memory_bytes()) {
    return false;
  }
  for (int i = 0; i < a.operators_size(); ++i) {
    const v1::OperatorPlan &x = a.operators(i), &y = b.operators(i);
    if (!std::equal(x.devices().begin(), x.devices().end(), y.devices().begin(),
                    y.devices().end())) {
      return false;
    }
    for (const auto& [axis, degree] : x.degrees()) {
      auto other = y.degrees().find(axis);
      if (degree != (other == y.degrees().end() ? 1 : other->second)) return false;
    }
  }
  return true;
}

}  // namespace

PlanProblem ProblemOf(const OpRegistry& registry, const Workload& work, MeasuredMachine& machine,
                      int devices) {
  PlanProblem problem;
  problem.registry = &registry;
  problem.graph = &work.graph;
  problem.batch_size = work.batch;
  problem.optimizer = work.optimizer;
  problem.cost = machine.cost();
  problem.seconds = Seconds;
  problem.machine = machine.Devices(devices);
  return problem;
}

absl::StatusOr<std::vector<NamedPlan>> MeasuredPlans(const OpRegistry& registry,
                                                     const Workload& work, MeasuredMachine& machine,
                                                     int max_devices) {
  // Batch norm needs the whole batch, so micro-batches are not allowed.
  const bool cuts_batch =
      std::none_of(work.graph.nodes().begin(), work.graph.nodes().end(),
                   [](const Node& node) { return node.op.rfind("batch_norm", 0) == 0; });
  std::vector<NamedPlan> plans;
  for (const Recipe& recipe : Recipes(cuts_batch)) {
    if (recipe.devices > max_devices) continue;
    PlanProblem problem = ProblemOf(registry, work, machine, recipe.devices);
    absl::StatusOr<v1::Plan> plan = recipe.make(problem);
    if (absl::IsResourceExhausted(plan.status())) continue;  // does not fit into less memory
    if (!plan.ok()) {
      return absl::Status(plan.status().code(),
                          absl::StrCat(work.name, ", ", recipe.name, " on ", recipe.devices, ": ",
                                       std::string(plan.status().message())));
    }
    // If no operator has the axis, the plan equals an earlier one.
    const bool twin = std::any_of(plans.begin(), plans.end(),
                                  [&](const NamedPlan& other) { return Alike(*plan, other.plan); });
    if (!twin) plans.push_back({absl::StrCat(recipe.devices, ": ", recipe.name), *std::move(plan)});
  }
  return plans;
}

}  // namespace espalier
