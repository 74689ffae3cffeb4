// Simulated against measured step time: plans of two models, one process and one thread per device,
// connected by Gloo over loopback. The planner is given what a coordinator has: the devices'
// calibration, the measured link, and operators measured alone.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ops/operators/register_all.h"
#include "tests/benchmarks/measured_machine.h"
#include "tests/benchmarks/ranks.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/workload.h"
#include "tests/plans/in_process_training.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(std::string, model, "", "only this one: cnn or lm");
ABSL_FLAG(bool, details, false, "print the profile of every rank to standard error");
ABSL_FLAG(int, rounds, 2, "turns; in each, every plan runs once");
ABSL_FLAG(int, steps, 10, "timed steps of a plan in a round");

namespace espalier {
namespace {

struct NamedPlan {
  std::string name;
  proto::Plan plan;
  std::vector<double> medians;  // by round
  RanksResult last;
};

std::vector<double> Ranks(const std::vector<double>& values) {
  std::vector<double> ranks;
  for (double v : values) {
    double below = 0, equal = 0;
    for (double other : values) {
      below += other < v;
      equal += other == v;
    }
    ranks.push_back(below + (equal + 1) / 2);
  }
  return ranks;
}

// Spearman's rank correlation; ties share their mean rank.
double RankCorrelation(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> x = Ranks(a), y = Ranks(b);
  const double mean = (static_cast<double>(a.size()) + 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

bool SameOperators(const proto::Plan& a, const proto::Plan& b) {
  if (a.devices_size() != b.devices_size() || a.operators_size() != b.operators_size())
    return false;
  for (int i = 0; i < a.operators_size(); ++i) {
    const proto::OperatorPlan &x = a.operators(i), &y = b.operators(i);
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

absl::StatusOr<std::vector<NamedPlan>> MakePlans(const OpRegistry& registry, const Workload& work,
                                                 MeasuredMachine& machine) {
  PlanProblem problem;
  problem.registry = &registry;
  problem.graph = &work.graph;
  problem.batch_size = work.batch;
  problem.optimizer = work.optimizer;
  problem.cost = machine.cost();
  problem.seconds = Seconds;

  using Kinds = std::vector<AxisKind>;
  const auto split = [&](Kinds kinds) {
    return HandMadePlan(problem, [kinds](int index, const Node&, const SplitRule& rule) {
      return SplitFirst(index, rule, kinds, 2);
    });
  };
  const auto search = [&](proto::SearchOptions::Strategy strategy) {
    proto::SearchOptions options;
    options.set_strategy(strategy);
    return MakePlan(problem, options);
  };
  std::vector<std::pair<std::string, absl::StatusOr<proto::Plan>>> made;
  problem.machine = machine.Devices(1);
  made.emplace_back("single device", search(proto::SearchOptions::SINGLE_DEVICE));
  problem.machine = machine.Devices(2);
  made.emplace_back("data parallel", search(proto::SearchOptions::DATA_PARALLEL));
  made.emplace_back("parameter parallel", split({AxisKind::kParameter, AxisKind::kSample}));
  made.emplace_back("attribute parallel", split({AxisKind::kAttribute, AxisKind::kSample}));
  made.emplace_back("reduction parallel", split({AxisKind::kReduction, AxisKind::kSample}));
  made.emplace_back("operators in turn on two devices",
                    HandMadePlan(problem, [](int index, const Node&, const SplitRule&) {
                      return Choice{{}, {index % 2}};
                    }));
  const int half = static_cast<int>(work.graph.nodes().size()) / 2;
  made.emplace_back("first half, second half",
                    HandMadePlan(problem, [half](int index, const Node&, const SplitRule&) {
                      return Choice{{}, {index < half ? 0 : 1}};
                    }));
  made.emplace_back("mixed",
                    HandMadePlan(problem, [](int index, const Node&, const SplitRule& rule) {
                      const Kinds kinds[] = {{AxisKind::kSample},
                                             {AxisKind::kParameter, AxisKind::kAttribute},
                                             {},
                                             {AxisKind::kReduction, AxisKind::kSample}};
                      return SplitFirst(index, rule, kinds[index % 4], 2);
                    }));
  made.emplace_back("searched", search(proto::SearchOptions::SEARCH));
  std::vector<NamedPlan> plans;
  for (auto& [name, plan] : made) {
    if (!plan.ok()) {
      return absl::Status(plan.status().code(),
                          absl::StrCat(name, ": ", std::string(plan.status().message())));
    }
    // A split that no operator has leaves another plan's; what the search finds is shown anyway.
    std::string twin;
    for (const NamedPlan& other : plans) {
      if (SameOperators(*plan, other.plan)) twin = other.name;
    }
    if (!twin.empty() && name != "searched") continue;
    plans.push_back({twin.empty() ? name : absl::StrCat(name, " (found ", twin, ")"),
                     *std::move(plan),
                     {},
                     {}});
  }
  return plans;
}

bool IsCommunication(const std::string& op) {
  return op == "send" || op == "receive" || op == "all_reduce" || op == "all_gather" ||
         op == "reduce_scatter" || op == "all_to_all" || op == "broadcast";
}

void AddPlanTable(const Workload& work, const std::vector<NamedPlan>& plans, Report* report) {
  report->Table(absl::StrCat("Step time, ", work.description),
                {"plan", "predicted ms", "measured ms", "error %", "predicted compute ms",
                 "measured compute ms", "predicted communication ms", "measured communication ms",
                 "moved MB"});
  std::vector<double> predicted, measured;
  double error_sum = 0;
  for (const NamedPlan& plan : plans) {
    const proto::Prediction& p = plan.plan.prediction();
    predicted.push_back(p.step_seconds());
    measured.push_back(Median(plan.medians));
    const double error = predicted.back() / measured.back() - 1;
    error_sum += std::abs(error);
    // Compute of the busiest rank; communication of the one that waits least.
    double compute = 0, communication = 1e9;
    for (const auto& profile : plan.last.profiles) {
      double own = 0, common = 0;
      for (const auto& [op, seconds] : profile) (IsCommunication(op) ? common : own) += seconds;
      compute = std::max(compute, own);
      communication = std::min(communication, common);
    }
    report->Row({Text(plan.name), Number(1e3 * p.step_seconds(), 2),
                 Number(1e3 * measured.back(), 2), Number(100 * error, 1),
                 Number(1e3 * p.compute_seconds(), 2), Number(1e3 * compute, 2),
                 Number(1e3 * p.communication_seconds(), 2), Number(1e3 * communication, 2),
                 Number(p.bytes_moved() / 1e6, 2)});
  }
  report->Note(absl::StrFormat(
      "%s: mean absolute relative error %.1f %% over %d plans, Spearman rank correlation %.3f",
      work.name, 100 * error_sum / static_cast<double>(plans.size()), plans.size(),
      RankCorrelation(predicted, measured)));
}

void PrintProfiles(const std::vector<NamedPlan>& plans) {
  for (const NamedPlan& plan : plans) {
    for (size_t rank = 0; rank < plan.last.profiles.size(); ++rank) {
      for (const auto& [op, seconds] : plan.last.profiles[rank]) {
        std::fprintf(stderr, "%s, rank %zu: %-32s %8.3f ms\n", plan.name.c_str(), rank, op.c_str(),
                     1e3 * seconds);
      }
    }
  }
}

// Where the prediction for one device goes wrong, by operator.
void AddOperatorTable(const OpRegistry& registry, const Workload& work, const NamedPlan& single,
                      MeasuredMachine& machine, Report* report) {
  std::map<std::string, double> predicted;
  double known = 0;
  for (size_t n = 0; n < work.graph.nodes().size(); ++n) {
    const Node& node = work.graph.node(static_cast<NodeId>(n));
    const OpDef& def = *registry.Find(node.op);
    if (node.op == "reshape" || node.op == "flatten" || node.op == "identity") continue;
    const CostModel::Times times =
        machine.cost()->Measure(def, work.graph.TypesOf(static_cast<NodeId>(n)), machine.device());
    predicted[node.op] += times.forward;
    if (def.gradient.has_value()) predicted[node.op + "_grad"] += times.backward;
    known += times.forward + (def.gradient.has_value() ? times.backward : 0);
  }
  report->Table(absl::StrCat("One device by operator, ", work.name),
                {"operator", "predicted ms", "measured ms", "difference ms"});
  std::vector<std::pair<double, std::string>> order;
  double rest = 0, rest_predicted = single.plan.prediction().step_seconds() - known;
  for (const auto& [op, seconds] : single.last.profiles[0]) {
    if (predicted.count(op) > 0) {
      order.emplace_back(-seconds, op);
    } else {
      rest += seconds;
    }
  }
  std::sort(order.begin(), order.end());
  if (order.size() > 14) order.resize(14);
  for (const auto& [minus, op] : order) {
    report->Row({Text(op), Number(1e3 * predicted[op], 3), Number(-1e3 * minus, 3),
                 Number(1e3 * (predicted[op] + minus), 3)});
  }
  report->Row({Text("sums of gradients, clipping, updates, loading"),
               Number(1e3 * rest_predicted, 3), Number(1e3 * rest, 3),
               Number(1e3 * (rest_predicted - rest), 3)});
  std::string parts = "The last row is, measured:";
  for (const auto& [op, seconds] : single.last.profiles[0]) {
    if (predicted.count(op) == 0) absl::StrAppendFormat(&parts, " %s %.3f ms,", op, 1e3 * seconds);
  }
  parts.back() = '.';
  report->Note(parts);
}

absl::Status Run(Report* report) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  auto machine = MeasuredMachine::Make(/*threads=*/1, /*with_link=*/true);
  if (!machine.ok()) return machine.status();
  report->Table("The machine as calibrated, one thread",
                {"matmul GFLOP/s", "memory GB/s", "operator overhead us"});
  const proto::Device& device = (*machine)->device();
  report->Row({Number(device.matmul_flops() / 1e9, 1), Number(device.memory_bandwidth() / 1e9, 2),
               Number(device.op_overhead_seconds() * 1e6, 2)});
  report->Table("The link between two processes, as the planner's model would have it",
                {"measured by", "GB/s", "latency us"});
  const auto row = [&](const std::string& way, const proto::Link& measured) {
    report->Row({Text(way), Number(measured.bandwidth() / 1e9, 2),
                 Number(measured.latency_seconds() * 1e6, 1)});
  };
  const LinkMeasurement& link = (*machine)->link();
  row("4 MiB there and back, best of 5 (as workers do)", link.ping_pong);
  row("sums of 1 MiB (used below)", link.sum);
  row("sums of 4 MiB", link.large_sum);
  for (const std::string name : {"cnn", "lm"}) {
    const std::string only = absl::GetFlag(FLAGS_model);
    if (!only.empty() && only != name) continue;
    absl::StatusOr<Workload> work = MakeWorkload(registry, name);
    if (!work.ok()) return work.status();
    const double before = (*machine)->measuring_seconds();
    const size_t known = (*machine)->cost()->size();
    absl::StatusOr<std::vector<NamedPlan>> plans = MakePlans(registry, *work, **machine);
    if (!plans.ok()) return plans.status();
    const double measuring = (*machine)->measuring_seconds() - before;
    const size_t shapes = (*machine)->cost()->size() - known;
    for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
      for (NamedPlan& plan : *plans) {
        RanksOptions options;
        options.workload = name;
        options.steps = absl::GetFlag(FLAGS_steps);
        absl::StatusOr<RanksResult> result = RunRanks(plan.plan, options);
        if (!result.ok()) return result.status();
        plan.medians.push_back(result->median_seconds);
        plan.last = *std::move(result);
      }
    }
    AddPlanTable(*work, *plans, report);
    if (absl::GetFlag(FLAGS_details)) PrintProfiles(*plans);
    report->Note(
        absl::StrFormat("Measuring %d shapes of operators took %.1f s.", shapes, measuring));
    AddOperatorTable(registry, *work, plans->front(), **machine, report);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  if (espalier::IsRankProcess(argc, argv)) return espalier::RankMain(argc, argv);
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("simulator_accuracy");
  if (absl::Status status = espalier::Run(&report); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
