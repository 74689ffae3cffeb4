// Joint search over graph rewrites and placements (Unity) against placement search of the fused
// graph: simulated step times of random graphs and of blocks of published models. Runs no model.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ops/graph/builder.h"
#include "ops/operators/register_all.h"
#include "ops/rewrite/fuse.h"
#include "planner/testing/graphs.h"
#include "planner/testing/small_problems.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/seconds.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(int, random_graphs, 60, "number of random graphs");
ABSL_FLAG(std::string, devices, "2,4,8", "of the blocks; empty: no blocks");
ABSL_FLAG(int, operators, 8, "of each random graph");
ABSL_FLAG(int64_t, budget, 0,
          "proposals of each search for placements; 0: the planner's own choice");
ABSL_FLAG(int, rewrite_budget, 100, "graphs for each different segment");
ABSL_FLAG(double, rewrite_alpha, 1.05, "graphs so many times slower are given up");

namespace espalier {
namespace {

struct Outcome {
  double before = 0, after = 0;  // seconds of a step
  double seconds_before = 0, seconds_after = 0;
  int64_t graphs = 0;
  std::map<std::string, int> rules;
};

absl::StatusOr<Outcome> Compare(const SmallProblem& problem) {
  PlanProblem given = problem.Problem();
  const absl::StatusOr<Graph> fused = Fuse(*given.registry, problem.graph);
  if (!fused.ok()) return fused.status();
  given.graph = &*fused;
  v1::SearchOptions options;
  if (const int64_t budget = absl::GetFlag(FLAGS_budget); budget > 0) options.set_budget(budget);
  Outcome outcome;
  double start = Seconds();
  const absl::StatusOr<v1::Plan> before = MakePlan(given, options);
  if (!before.ok()) return before.status();
  outcome.seconds_before = Seconds() - start;
  options.set_rewrite_budget(absl::GetFlag(FLAGS_rewrite_budget));
  options.set_rewrite_alpha(absl::GetFlag(FLAGS_rewrite_alpha));
  start = Seconds();
  const absl::StatusOr<v1::Plan> after = MakePlan(given, options);
  if (!after.ok()) return after.status();
  outcome.seconds_after = Seconds() - start;
  outcome.before = before->prediction().step_seconds();
  outcome.after = after->prediction().step_seconds();
  outcome.graphs = after->search().graphs();
  for (const v1::Rewrite& rewrite : after->rewrites()) ++outcome.rules[rewrite.rule()];
  return outcome;
}

std::string Names(const std::map<std::string, int>& rules) {
  std::string names;
  for (const auto& [rule, count] : rules) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", rule);
    if (count > 1) absl::StrAppend(&names, " x", count);
  }
  return names.empty() ? "-" : names;
}

// The first branching block of Inception-v3 with a smaller input; biases and activations are fused
// into the convolutions, as fusion does without batch norm.
SmallProblem InceptionBlock(const v1::Link& link, int devices) {
  GraphBuilder b(TestRegistry(), "inception_block");
  const ValueId x = b.Input("x", DType::kF32, {-1, 192, 35, 35});
  const auto conv = [&](const std::string& name, ValueId from, int64_t in, int64_t out,
                        int64_t window) {
    const int64_t pad = window / 2;
    const ValueId w = b.Parameter(name + ".weight", DType::kF32, {out, in, window, window}, {});
    const ValueId bias = b.Parameter(name + ".bias", DType::kF32, {out}, {});
    const ValueId y =
        b.Op("conv2d", {from, w, bias}, {{"pads", std::vector<int64_t>{pad, pad, pad, pad}}}, name);
    return b.Op("relu", {y}, {}, name + ".relu");
  };
  const ValueId first = conv("first", x, 192, 192, 1);
  const ValueId narrow = conv("narrow", conv("narrow.in", first, 192, 48, 1), 48, 64, 5);
  const ValueId wide =
      conv("wide.out", conv("wide", conv("wide.in", first, 192, 64, 1), 64, 96, 3), 96, 96, 3);
  const ValueId pointwise = conv("pointwise", first, 192, 64, 1);
  const ValueId all = b.Op("concat", {pointwise, narrow, wide}, {{"axis", int64_t{1}}}, "block");
  const ValueId pooled =
      b.Op("reduce_mean", {all}, {{"axes", std::vector<int64_t>{2, 3}}}, "pooled");
  b.Output("loss", b.Op("mean_squared_error", {pooled, b.Input("labels", DType::kF32, {-1, 224})},
                        {}, "loss"));
  SmallProblem problem;
  problem.name = "inception_block";
  problem.batch = 16;
  problem.graph = *b.Build();
  problem.machine = TestMachine(devices, int64_t{1} << 42);
  problem.machine.link = link;
  absl::Status status = BindAndInfer(TestRegistry(), problem.batch, &problem.graph);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return problem;
}

// Three MLP blocks that are narrow outside and wide inside, with fused biases.
SmallProblem NarrowBlocks(const v1::Link& link, int devices) {
  GraphBuilder b(TestRegistry(), "narrow_blocks");
  ValueId x = b.Input("x", DType::kF32, {-1, 256});
  for (int i = 0; i < 3; ++i) {
    const std::string name = absl::StrCat("block", i);
    const auto layer = [&](const std::string& which, ValueId from, int64_t in, int64_t out) {
      const ValueId w = b.Parameter(name + which + ".weight", DType::kF32, {out, in}, {});
      const ValueId bias = b.Parameter(name + which + ".bias", DType::kF32, {out}, {});
      return b.Op("linear", {from, w, bias}, {}, name + which);
    };
    const ValueId wide = b.Op("relu", {layer(".up", x, 256, 4096)}, {}, name + ".relu");
    x = b.Op("add", {x, layer(".down", wide, 4096, 256)}, {}, name);
  }
  b.Output("loss",
           b.Op("mean_squared_error", {x, b.Input("labels", DType::kF32, {-1, 256})}, {}, "loss"));
  SmallProblem problem;
  problem.name = "narrow_blocks";
  problem.batch = 256;
  problem.graph = *b.Build();
  problem.machine = TestMachine(devices, int64_t{1} << 42);
  problem.machine.link = link;
  absl::Status status = BindAndInfer(TestRegistry(), problem.batch, &problem.graph);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return problem;
}

absl::Status RunRandom(Report* report) {
  std::vector<double> gains;
  std::map<std::string, int> rules;
  double before = 0, after = 0;
  int64_t graphs = 0;
  for (int seed = 0; seed < absl::GetFlag(FLAGS_random_graphs); ++seed) {
    const SmallProblem problem = RandomProblem(seed, 2 + seed % 3, absl::GetFlag(FLAGS_operators));
    absl::StatusOr<Outcome> outcome = Compare(problem);
    if (!outcome.ok()) return outcome.status();
    gains.push_back(outcome->before / outcome->after);
    before += outcome->seconds_before;
    after += outcome->seconds_after;
    graphs += outcome->graphs;
    for (const auto& [rule, count] : outcome->rules) ++rules[rule];
  }
  if (gains.empty()) return absl::OkStatus();
  std::sort(gains.begin(), gains.end());
  const auto share = [&](double than) {
    const auto n = std::count_if(gains.begin(), gains.end(), [&](double g) { return g > than; });
    return 100.0 * static_cast<double>(n) / static_cast<double>(gains.size());
  };
  report->Table("Random graphs, 2 to 4 devices: step time without rewrites over that with them",
                {"graphs", "worst", "median", "best", "over 1.01, %", "over 1.05, %", "over 1.2, %",
                 "search s without", "with", "graphs tried, mean"});
  const double count = static_cast<double>(gains.size());
  report->Row({Number(count, 0), Number(gains.front(), 3), Number(gains[gains.size() / 2], 3),
               Number(gains.back(), 3), Number(share(1.01), 1), Number(share(1.05), 1),
               Number(share(1.2), 1), Number(before / count, 2), Number(after / count, 2),
               Number(static_cast<double>(graphs) / count, 0)});
  report->Note(
      absl::StrCat("Rules, with the number of graphs whose plan has them: ", Names(rules)));
  return absl::OkStatus();
}

absl::Status RunBlocks(Report* report) {
  report->Table("Blocks of models", {"block", "devices", "link", "fused, ms", "joint, ms", "gain",
                                     "rewrites", "graphs tried", "search s without", "with"});
  for (const double bandwidth : {1e9, 2e10, 2e11}) {
    v1::Link link;
    link.set_bandwidth(bandwidth);
    link.set_latency_seconds(2e-5);
    for (const auto& text : absl::StrSplit(absl::GetFlag(FLAGS_devices), ',', absl::SkipEmpty())) {
      int devices = 0;
      if (!absl::SimpleAtoi(text, &devices) || devices < 1) {
        return absl::InvalidArgumentError("--devices expects numbers with commas");
      }
      std::vector<SmallProblem> problems = {InceptionBlock(link, devices),
                                            NarrowBlocks(link, devices)};
      for (const std::string& model : ModelsWithFirstLayers()) {
        problems.push_back(FirstLayers(model, link, devices, 12));
      }
      for (const SmallProblem& problem : problems) {
        absl::StatusOr<Outcome> outcome = Compare(problem);
        if (!outcome.ok()) return outcome.status();
        report->Row({Text(problem.name), Number(devices, 0),
                     Text(absl::StrCat(bandwidth / 1e9, " GB/s")), Number(1e3 * outcome->before, 3),
                     Number(1e3 * outcome->after, 3), Number(outcome->before / outcome->after, 3),
                     Text(Names(outcome->rules)), Number(static_cast<double>(outcome->graphs), 0),
                     Number(outcome->seconds_before, 2), Number(outcome->seconds_after, 2)});
      }
    }
  }
  report->Note(
      "Simulated with the analytic cost model; f32. A step takes forward, backward and update.");
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("joint_search");
  for (const auto& run : {espalier::RunRandom, espalier::RunBlocks}) {
    if (absl::Status status = run(&report); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
