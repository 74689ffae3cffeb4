// Predicted against measured step times of many plans of four models, with one process and one
// thread per device, connected like workers of one host. The planner has what a coordinator has:
// calibrated devices, and measured messages, collectives and single operators. Nothing is fitted to
// the compared plans.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "planner/report/timeline.h"
#include "tests/benchmarks/measured_machine.h"
#include "tests/benchmarks/measured_plans.h"
#include "tests/benchmarks/rank_processes.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/workload.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(std::vector<std::string>, models,
          std::vector<std::string>({"cnn", "mlp", "lm", "resnet"}), "which");
ABSL_FLAG(std::string, only, "", "only plans whose name contains this");
ABSL_FLAG(int, workers, 4, "at most; 1 to 4");
ABSL_FLAG(std::string, profile, "",
          "a profile file: its values are not measured again; all measurements are written to it");
ABSL_FLAG(
    std::string, results, "",
    "a file that keeps the plans' times, so that models can be run one by one: what it has of "
    "other models counts in the last table and in the numbers over all");
ABSL_FLAG(bool, details, false, "print what every rank did to standard error");
ABSL_FLAG(int, rounds, 2, "turns; in each, every plan runs once");
ABSL_FLAG(int, steps, 6, "timed steps of a plan in a round");

namespace espalier {
namespace {

// Batches that 2, 3 and 4 devices divide.
int64_t BatchOf(const std::string& model) {
  return model == "cnn" ? 384 : model == "mlp" ? 240 : 12;
}

// Seconds by kind of work.
using Parts = std::map<std::string, double>;

// One plan, predicted and measured.
struct Comparison {
  std::string model;
  NamedPlan plan;
  double predicted_seconds = 0;
  std::vector<double> medians;  // by round
  // By device: what was predicted, and what the last round did.
  std::vector<Parts> predicted, measured;
  std::vector<std::map<std::string, double>> profiles;  // by operator

  double measured_seconds() const { return Median(medians); }
  double error() const { return predicted_seconds / measured_seconds() - 1; }
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

std::string PartOf(const std::string& op) {
  static const std::map<std::string, std::string> kParts = {
      {"send", "messages"},          {"receive", "messages"},
      {"all_reduce", "collectives"}, {"all_gather", "collectives"},
      {"broadcast", "collectives"},  {"reduce_scatter", "collectives"},
      {"all_to_all", "collectives"}, {"copy", "copies"},
      {"update", "updates"},         {"sum_squares", "updates"},
      {"clip_scale", "updates"},     {"add_n", "backward"},
      {"load_batch", "the rest"},    {"report", "the rest"},
      {"fill", "the rest"},          {"swap_in", "the rest"},
      {"swap_out", "the rest"}};
  const auto found = kParts.find(op);
  if (found != kParts.end()) return found->second;
  return op.size() > 5 && op.substr(op.size() - 5) == "_grad" ? "backward" : "forward";
}

// Returns the parts of the simulated step by device.
absl::StatusOr<std::vector<Parts>> PredictedParts(const PlanProblem& problem,
                                                  const v1::Plan& plan) {
  absl::StatusOr<std::shared_ptr<const Timeline>> timeline = SimulatePlan(problem, plan);
  if (!timeline.ok()) return timeline.status();
  std::vector<Parts> parts(plan.devices_size());
  for (const TimelineTask& task : (*timeline)->tasks) {
    const std::string part = task.communicates                      ? "communication"
                             : task.kind == TimelineTask::kForward  ? "forward"
                             : task.kind == TimelineTask::kBackward ? "backward"
                             : task.kind == TimelineTask::kUpdate   ? "updates"
                                                                    : "copies";
    parts[task.device][part] += task.end - task.begin;
  }
  for (int d = 0; d < plan.devices_size(); ++d) {
    double busy = 0;
    for (const auto& [part, seconds] : parts[d]) busy += seconds;
    parts[d]["waiting"] = plan.prediction().step_seconds() - busy;
  }
  return parts;
}

Parts MeasuredParts(const std::map<std::string, double>& profile) {
  Parts parts;
  for (const auto& [op, seconds] : profile) parts[PartOf(op)] += seconds;
  return parts;
}

std::string ToText(const Parts& parts) {
  std::string text;
  for (const auto& [part, seconds] : parts) {
    absl::StrAppendFormat(&text, "%s%s %.1f", text.empty() ? "" : ", ", part, 1e3 * seconds);
  }
  return text;
}

void AddSummary(const std::string& name, const std::vector<const Comparison*>& plans,
                Report* report) {
  std::vector<double> predicted, measured;
  double error_sum = 0;
  for (const Comparison* plan : plans) {
    predicted.push_back(plan->predicted_seconds);
    measured.push_back(plan->measured_seconds());
    error_sum += std::abs(plan->error());
  }
  report->Note(absl::StrFormat(
      "%s: mean absolute relative error %.1f %% over %d plans, Spearman rank correlation %.3f",
      name, 100 * error_sum / static_cast<double>(plans.size()), plans.size(),
      RankCorrelation(predicted, measured)));
}

void AddPlanTable(const std::string& title, const std::vector<const Comparison*>& plans,
                  Report* report) {
  report->Table(
      title, {"plan", "predicted ms", "measured ms", "error %", "least ms", "most ms", "moved MB"});
  for (const Comparison* plan : plans) {
    const auto [least, most] = std::minmax_element(plan->medians.begin(), plan->medians.end());
    report->Row({Text(plan->plan.name), Number(1e3 * plan->predicted_seconds, 2),
                 Number(1e3 * plan->measured_seconds(), 2), Number(100 * plan->error(), 1),
                 Number(1e3 * *least, 2), Number(1e3 * *most, 2),
                 Number(plan->plan.plan.prediction().bytes_moved() / 1e6, 2)});
  }
}

// Reports the parts of the worst predictions. Measured communication includes waiting for peers.
void AddWorst(std::vector<const Comparison*> plans, Report* report) {
  std::sort(plans.begin(), plans.end(), [](const Comparison* a, const Comparison* b) {
    return std::abs(a->error()) > std::abs(b->error());
  });
  if (plans.size() > 3) plans.resize(3);
  report->Table("The worst three, ms by what they are spent on",
                {"plan", "error %", "device", "predicted", "measured, with clocks read"});
  for (const Comparison* plan : plans) {
    for (size_t d = 0; d < plan->predicted.size(); ++d) {
      report->Row({Text(absl::StrCat(plan->model, ", ", plan->plan.name)),
                   Number(100 * plan->error(), 1), Number(static_cast<double>(d), 0),
                   Text(ToText(plan->predicted[d])), Text(ToText(plan->measured[d]))});
    }
  }
}

void PrintDetails(const Comparison& plan) {
  for (size_t rank = 0; rank < plan.profiles.size(); ++rank) {
    std::fprintf(stderr, "%s, %s, rank %zu: predicted %.2f (%s), measured %.2f (%s)\n",
                 plan.model.c_str(), plan.plan.name.c_str(), rank, 1e3 * plan.predicted_seconds,
                 ToText(plan.predicted[rank]).c_str(), 1e3 * plan.measured_seconds(),
                 ToText(plan.measured[rank]).c_str());
    for (const auto& [op, seconds] : plan.profiles[rank]) {
      std::fprintf(stderr, "    %-32s %8.3f ms\n", op.c_str(), 1e3 * seconds);
    }
  }
}

// Reports predicted and measured times by operator, on one device.
void AddOperatorTable(const OpRegistry& registry, const Workload& work, const Comparison& single,
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
  double rest = 0, rest_predicted = single.predicted_seconds - known;
  for (const auto& [op, seconds] : single.profiles[0]) {
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
  for (const auto& [op, seconds] : single.profiles[0]) {
    if (predicted.count(op) == 0) absl::StrAppendFormat(&parts, " %s %.3f ms,", op, 1e3 * seconds);
  }
  parts.back() = '.';
  report->Note(parts);
}

void AddMachine(const MeasuredMachine& machine, Report* report) {
  report->Table("The machine as calibrated, one thread",
                {"matmul GFLOP/s", "memory GB/s", "operator overhead us"});
  const v1::Device& device = machine.device();
  report->Row({Number(device.matmul_flops() / 1e9, 1), Number(device.memory_bandwidth() / 1e9, 2),
               Number(device.op_overhead_seconds() * 1e6, 2)});
  report->Table("Communication between processes",
                {"what", "processes", "ranks", "bytes", "us", "sender us"});
  for (const auto& [world, profile] : machine.communication()) {
    for (const auto& m : profile.messages()) {
      report->Row({Text("message"), Number(world, 0), Number(2, 0), Number(m.bytes(), 0),
                   Number(1e6 * m.receive_seconds(), 1), Number(1e6 * m.send_seconds(), 1)});
    }
    for (const auto& c : profile.collectives()) {
      const auto kind = static_cast<v1::CollectiveInstruction::Kind>(c.kind());
      report->Row({Text(v1::CollectiveInstruction::Kind_Name(kind)), Number(world, 0),
                   Number(c.ranks(), 0), Number(c.bytes(), 0), Number(1e6 * c.seconds(), 1),
                   Text("")});
    }
  }
}

// Replaces the file's results of the models in `all`, and adds its results of other models to
// `all`.
absl::Status MergeResults(const std::string& path, std::vector<Comparison>* all) {
  using Json = nlohmann::json;
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  Json rows = text.empty() ? Json::array() : Json::parse(text, nullptr, false);
  if (!rows.is_array()) return absl::InvalidArgumentError(absl::StrCat(path, ": no results"));
  const size_t run = all->size();
  Json kept = Json::array();
  for (const Json& row : rows) {
    const std::string model = row.at("model");
    const bool anew = std::any_of(all->begin(), all->begin() + run,
                                  [&](const Comparison& c) { return c.model == model; });
    if (anew) continue;
    Comparison comparison{.model = model};
    comparison.plan.name = row.at("plan");
    comparison.predicted_seconds = row.at("predicted_seconds");
    comparison.medians = row.at("measured_seconds").get<std::vector<double>>();
    comparison.predicted = row.at("predicted").get<std::vector<Parts>>();
    comparison.measured = row.at("measured").get<std::vector<Parts>>();
    all->push_back(std::move(comparison));
    kept.push_back(row);
  }
  for (size_t i = 0; i < run; ++i) {
    const Comparison& c = (*all)[i];
    kept.push_back({{"model", c.model},
                    {"plan", c.plan.name},
                    {"predicted_seconds", c.predicted_seconds},
                    {"measured_seconds", c.medians},
                    {"predicted", c.predicted},
                    {"measured", c.measured}});
  }
  std::ofstream(path, std::ios::binary) << kept.dump(1) << "\n";
  return absl::OkStatus();
}

std::vector<const Comparison*> OfModel(const std::vector<Comparison>& all,
                                       const std::string& model) {
  std::vector<const Comparison*> plans;
  for (const Comparison& plan : all) {
    if (model.empty() || plan.model == model) plans.push_back(&plan);
  }
  return plans;
}

absl::Status Run(Report* report) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const int workers = absl::GetFlag(FLAGS_workers);
  if (workers < 1 || workers > 4) {
    return absl::InvalidArgumentError(absl::StrCat("--workers=", workers, "; accepted: 1 to 4"));
  }
  const std::string path = absl::GetFlag(FLAGS_profile);
  std::ifstream file(path, std::ios::binary);
  const std::string profile((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
  auto machine = MeasuredMachine::Make(/*threads=*/1, workers, profile);
  if (!machine.ok()) return machine.status();
  AddMachine(**machine, report);
  std::vector<Comparison> all;
  std::map<std::string, Workload> works;
  for (const std::string& model : absl::GetFlag(FLAGS_models)) {
    absl::StatusOr<Workload> work = MakeWorkload(registry, model, BatchOf(model));
    if (!work.ok()) return work.status();
    works[model] = *std::move(work);
    auto plans = MeasuredPlans(registry, works[model], **machine, workers);
    if (!plans.ok()) return plans.status();
    for (NamedPlan& plan : *plans) {
      if (plan.name.find(absl::GetFlag(FLAGS_only)) == std::string::npos) continue;
      Comparison comparison{.model = model, .plan = std::move(plan)};
      const PlanProblem problem =
          ProblemOf(registry, works[model], **machine, comparison.plan.plan.devices_size());
      absl::StatusOr<std::vector<Parts>> parts = PredictedParts(problem, comparison.plan.plan);
      if (!parts.ok()) return parts.status();
      comparison.predicted = *std::move(parts);
      comparison.predicted_seconds = comparison.plan.plan.prediction().step_seconds();
      all.push_back(std::move(comparison));
    }
  }
  if (!path.empty()) std::ofstream(path, std::ios::binary) << (*machine)->Profile();
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    for (Comparison& plan : all) {
      RankProcessOptions options;
      options.workload = plan.model;
      options.batch = BatchOf(plan.model);
      options.warmup = 2;
      options.steps = absl::GetFlag(FLAGS_steps);
      options.profiled_steps = 2;
      absl::StatusOr<RankProcessResult> result = TrainInRankProcesses(plan.plan.plan, options);
      if (!result.ok()) return result.status();
      plan.medians.push_back(result->median_seconds);
      plan.profiles = std::move(result->profiles);
      plan.measured.clear();
      for (const auto& profile : plan.profiles) plan.measured.push_back(MeasuredParts(profile));
    }
  }
  for (const auto& [model, work] : works) {
    const std::vector<const Comparison*> plans = OfModel(all, model);
    AddPlanTable(absl::StrCat("Step time, ", work.description), plans, report);
    AddSummary(model, plans, report);
    AddOperatorTable(registry, work, *plans.front(), **machine, report);
  }
  if (const std::string results = absl::GetFlag(FLAGS_results); !results.empty()) {
    if (absl::Status s = MergeResults(results, &all); !s.ok()) return s;
  }
  AddWorst(OfModel(all, ""), report);
  AddSummary("All", OfModel(all, ""), report);
  report->Note(absl::StrFormat("Measuring %d shapes of operators took %.1f s.",
                               (*machine)->cost()->size(), (*machine)->measuring_seconds()));
  if (absl::GetFlag(FLAGS_details)) {
    for (const Comparison& plan : all) {
      if (!plan.profiles.empty()) PrintDetails(plan);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  if (espalier::IsRankProcess(argc, argv)) return espalier::RankMain(argc, argv);
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("predicted_vs_measured");
  if (absl::Status status = espalier::Run(&report); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
