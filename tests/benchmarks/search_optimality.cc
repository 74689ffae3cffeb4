// Optimality of MakePlan's default search on problems small enough for exhaustive search: random
// graphs on 2 to 4 devices, and the first layers of real models. With --low_memory_problems: on
// devices that have less memory than the fastest plan needs, against the fastest of all placements
// at all ZeRO stages, each made to fit by swaps and recomputation.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "planner/cost/analytic_cost.h"
#include "planner/testing/exhaustive_planner.h"
#include "planner/testing/exhaustive_search.h"
#include "planner/testing/small_problems.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/workload.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(int, graphs, 240, "random ones");
ABSL_FLAG(double, max_placements, 1'000'000,
          "at most so many of a problem; larger ones lose operators");
ABSL_FLAG(int, low_memory_problems, 0,
          "instead of all else, this many random problems on devices with too little memory");
ABSL_FLAG(double, max_low_memory_placements, 3000,
          "maximum placements of a --low_memory_problems problem at one ZeRO stage");
ABSL_FLAG(int64_t, budget, 0, "of each plan; 0: the planner's own choice");
ABSL_FLAG(uint64_t, seed, 0, "of the search");
ABSL_FLAG(bool, verbose, false, "a line for each problem on standard error");

namespace espalier {
namespace {

struct Comparison {
  std::string name;
  int devices = 0;
  double operators = 0;
  double placements = 0;
  double optimum = 0;  // seconds
  double found = 0;    // seconds
  double proposals = 0;
  double enumeration_seconds = 0;
  double search_seconds = 0;
  double ratio() const { return found / optimum; }
};

constexpr int kMostOperators = 9;

// Compares on the longest prefix of a problem that has few enough placements.
template <typename Make>
absl::StatusOr<Comparison> Compare(const Make& make) {
  for (int operators = kMostOperators; operators > 0; --operators) {
    const SmallProblem small = make(operators);
    PlanProblem problem = small.Problem();
    AnalyticCost cost;
    problem.cost = &cost;
    problem.seconds = Seconds;
    absl::StatusOr<PcgStructure> structure =
        BuildStructure(*problem.registry, *problem.graph, /*forward_only=*/false);
    if (!structure.ok()) return structure.status();
    Comparison c;
    c.name = small.name;
    c.devices = static_cast<int>(problem.machine.devices.size());
    c.operators = static_cast<double>(structure->LiveNodes().size());
    const SearchSpace space(*structure, {.num_devices = c.devices});
    c.placements = CountPlacements(space);
    if (c.placements > absl::GetFlag(FLAGS_max_placements) && operators > 1) continue;

    ConfigTable table(*structure);
    CostTables costs(*structure, table, problem.machine, cost, problem.optimizer);
    Simulator simulator(*structure, table, costs);
    const double begin = Seconds();
    absl::StatusOr<ExhaustivePlacement> optimum =
        PlaceExhaustively(*structure, space, table, &simulator);
    if (!optimum.ok()) return optimum.status();
    c.enumeration_seconds = Seconds() - begin;
    c.optimum = ToSeconds(optimum->cost);

    v1::SearchOptions options;
    if (const int64_t budget = absl::GetFlag(FLAGS_budget); budget > 0) options.set_budget(budget);
    options.set_seed(absl::GetFlag(FLAGS_seed));
    options.set_micro_batches(1);  // exhaustive search has no micro-batches
    absl::StatusOr<v1::Plan> plan = MakePlan(problem, options);
    if (!plan.ok()) return plan.status();
    c.found = plan->prediction().step_seconds();
    c.proposals = static_cast<double>(plan->search().proposals());
    c.search_seconds = plan->search().seconds();
    if (c.ratio() < 1 - 1e-9) {
      return absl::InternalError(absl::StrCat(small.name, ": the search found ", c.found,
                                              " s, less than the optimum ", c.optimum));
    }
    if (absl::GetFlag(FLAGS_verbose)) {
      std::fprintf(stderr, "%s on %d: %.0f operators, %.0f placements, ratio %.4f, %.1f s\n",
                   c.name.c_str(), c.devices, c.operators, c.placements, c.ratio(),
                   c.enumeration_seconds);
    }
    return c;
  }
  return absl::InternalError("no operators");
}

void Distribution(const std::string& name, const std::vector<Comparison>& all, Report* report) {
  const double n = static_cast<double>(all.size());
  const auto within = [&](double bound) {
    return Number(100.0 *
                      static_cast<double>(std::count_if(
                          all.begin(), all.end(),
                          [&](const Comparison& c) { return c.ratio() <= bound + 1e-9; })) /
                      n,
                  1);
  };
  double worst = 1, placements = 0, proposals = 0, seconds = 0, enumeration = 0;
  for (const Comparison& c : all) {
    worst = std::max(worst, c.ratio());
    placements += c.placements;
    proposals += c.proposals;
    seconds += c.search_seconds;
    enumeration += c.enumeration_seconds;
  }
  report->Row({Text(name), Number(n, 0), within(1), within(1.01), within(1.05), within(1.1),
               Number(worst, 3), Number(placements / n, 0), Number(proposals / n, 0),
               Number(1e3 * seconds / n, 0), Number(placements / enumeration, 0)});
}

struct MemoryLimitedComparison {
  bool is_low = false;
  std::string name;
  int devices = 0;
  double part = 0;
  double ample = 0;  // seconds
  ExhaustivePlan optimum;
  double found = 0;  // seconds; 0: no plan
  int found_stage = 0;
  bool found_made_to_fit = false;
  double search_seconds = 0;
  double ratio() const { return found / optimum.seconds; }
};

absl::StatusOr<MemoryLimitedComparison> CompareMemoryLimited(uint64_t seed) {
  absl::StatusOr<LowMemoryProblem> tight =
      MakeLowMemoryProblem(seed, absl::GetFlag(FLAGS_max_low_memory_placements));
  if (!tight.ok()) return tight.status();
  MemoryLimitedComparison t;
  t.is_low = tight->is_low;
  if (!t.is_low) return t;
  t.name = tight->small.name;
  t.devices = static_cast<int>(tight->small.machine.devices.size());
  t.part = tight->part;
  t.ample = tight->ample_seconds;
  t.optimum = tight->optimum;
  const PlanProblem problem = tight->small.Problem();
  const double begin = Seconds();
  const absl::StatusOr<v1::Plan> plan = MakePlan(problem, tight->options);
  t.search_seconds = Seconds() - begin;
  if (!plan.ok() && !absl::IsResourceExhausted(plan.status())) return plan.status();
  if (plan.ok()) {
    t.found = plan->prediction().step_seconds();
    t.found_stage = plan->zero_stage();
    t.found_made_to_fit = !plan->memory_plans().empty();
    if (!t.optimum.found || t.ratio() < 1 - 1e-9) {
      return absl::InternalError(absl::StrCat(t.name, ": the search found ", t.found,
                                              " s, less than the optimum ", t.optimum.seconds));
    }
  }
  if (absl::GetFlag(FLAGS_verbose)) {
    std::fprintf(stderr,
                 "%s on %d, %.0f %% of the memory: %ld placements, %ld lowered, ample %.4g ms, "
                 "optimum %.4g ms at stage %d%s, found %.4g ms at stage %d%s, ratio %.4f, %.2f s\n",
                 t.name.c_str(), t.devices, 100 * t.part, static_cast<long>(t.optimum.placements),
                 static_cast<long>(t.optimum.lowered), 1e3 * t.ample, 1e3 * t.optimum.seconds,
                 t.optimum.zero_stage, t.optimum.made_to_fit ? " made to fit" : "", 1e3 * t.found,
                 t.found_stage, t.found_made_to_fit ? " made to fit" : "", t.ratio(),
                 t.search_seconds);
  }
  return t;
}

void ReportMemoryLimited(const std::string& name, const std::vector<MemoryLimitedComparison>& all,
                         Report* report) {
  if (all.empty()) return;
  const double n = static_cast<double>(all.size());
  const auto part = [&](auto holds) {
    return Number(100.0 * static_cast<double>(std::count_if(all.begin(), all.end(), holds)) / n, 1);
  };
  const auto within = [&](double bound) {
    return part([bound](const MemoryLimitedComparison& t) {
      return t.found > 0 && t.ratio() <= bound + 1e-9;
    });
  };
  double worst = 1, placements = 0, lowered = 0, seconds = 0;
  int none = 0;
  for (const MemoryLimitedComparison& t : all) {
    worst = std::max(worst, t.ratio());
    none += t.found == 0;
    placements += static_cast<double>(t.optimum.placements);
    lowered += static_cast<double>(t.optimum.lowered);
    seconds += t.search_seconds;
  }
  report->Row({Text(name), Number(n, 0), within(1), within(1.01), within(1.05), within(1.1),
               Number(worst, 3), Number(none, 0),
               part([](const MemoryLimitedComparison& t) { return t.optimum.made_to_fit; }),
               part([](const MemoryLimitedComparison& t) { return t.optimum.zero_stage > 0; }),
               Number(placements / n, 0), Number(lowered / n, 0), Number(1e3 * seconds / n, 0)});
}

absl::Status RunMemoryLimited(Report* report) {
  std::vector<MemoryLimitedComparison> all;
  int ample = 0;
  for (int i = 0; i < absl::GetFlag(FLAGS_low_memory_problems); ++i) {
    absl::StatusOr<MemoryLimitedComparison> t = CompareMemoryLimited(i);
    if (!t.ok()) return t.status();
    if (t->is_low) {
      all.push_back(*std::move(t));
    } else {
      ++ample;
    }
  }
  report->Table(
      "Step time of the plan over the optimum of all placements and ZeRO stages, made to "
      "fit, on devices with too little memory for the fastest placement",
      {"memory", "problems", "optimal %", "within 1 % %", "within 5 % %", "within 10 % %", "worst",
       "no plan", "optimum swaps or recomputes %", "optimum has ZeRO %", "placements, mean",
       "lowered, mean", "plan ms, mean"});
  for (double part : {0.0, 0.2, 0.4, 0.6, 0.8}) {
    std::vector<MemoryLimitedComparison> some;
    for (const MemoryLimitedComparison& t : all) {
      if (t.part == part) some.push_back(t);
    }
    ReportMemoryLimited(absl::StrCat(100 * part, " %"), some, report);
  }
  ReportMemoryLimited("all", all, report);
  report->Note(absl::StrCat(
      "Memory: of the way from the least in which data parallelism or one device fits, at any ZeRO "
      "stage, to what the fastest placement needs; ",
      ample,
      " problems without such a way are left out. Optimum: every placement of the search space at "
      "stages 0 to 3 that would be faster if it fitted is lowered and made to fit."));
  std::stable_sort(all.begin(), all.end(),
                   [](const MemoryLimitedComparison& a, const MemoryLimitedComparison& b) {
                     return (a.found == 0 ? 1e9 : a.ratio()) > (b.found == 0 ? 1e9 : b.ratio());
                   });
  report->Table("The worst",
                {"problem", "devices", "memory %", "ample ms", "optimum ms", "its ZeRO",
                 "made to fit", "found ms", "ZeRO", "made to fit", "ratio"});
  for (size_t i = 0; i < all.size() && i < 10; ++i) {
    const MemoryLimitedComparison& t = all[i];
    report->Row({Text(t.name), Number(t.devices, 0), Number(100 * t.part, 0),
                 Number(1e3 * t.ample, 3), Number(1e3 * t.optimum.seconds, 3),
                 Number(t.optimum.zero_stage, 0), Text(t.optimum.made_to_fit ? "yes" : "no"),
                 Number(1e3 * t.found, 3), Number(t.found_stage, 0),
                 Text(t.found_made_to_fit ? "yes" : "no"), Number(t.ratio(), 4)});
  }
  return absl::OkStatus();
}

v1::Link MakeLink(double bytes_per_second, double latency) {
  v1::Link link;
  link.set_bandwidth(bytes_per_second);
  link.set_latency_seconds(latency);
  return link;
}

absl::Status Run(Report* report) {
  std::vector<Comparison> random, real;
  for (int i = 0; i < absl::GetFlag(FLAGS_graphs); ++i) {
    absl::StatusOr<Comparison> c =
        Compare([i](int operators) { return RandomProblem(i, 2 + i % 3, operators); });
    if (!c.ok()) return c.status();
    random.push_back(*std::move(c));
  }
  const std::pair<const char*, v1::Link> links[] = {{"1 Gb/s", MakeLink(1.25e8, 100e-6)},
                                                    {"100 Gb/s", MakeLink(1.25e10, 5e-6)}};
  for (const std::string& model : ModelsWithFirstLayers()) {
    for (int devices = 2; devices <= 4; ++devices) {
      for (const auto& [link_name, link] : links) {
        absl::StatusOr<Comparison> c = Compare(
            [&, l = &link](int operators) { return FirstLayers(model, *l, devices, operators); });
        if (!c.ok()) return c.status();
        absl::StrAppend(&c->name, ", ", link_name);
        real.push_back(*std::move(c));
      }
    }
  }
  std::vector<Comparison> all = random;
  all.insert(all.end(), real.begin(), real.end());

  report->Table(
      "Step time of the searched plan over the optimum of all placements",
      {"problems", "number", "optimal %", "within 1 % %", "within 5 % %", "within 10 % %", "worst",
       "placements, mean", "proposals, mean", "search ms, mean", "enumerated /s"});
  Distribution("random graphs", random, report);
  Distribution("first layers of models", real, report);
  Distribution("all", all, report);
  report->Note(
      "The optimum is over every placement of the search space, all tried. Predicted with the "
      "analytic cost model; search with the planner's default budget, lowering of the "
      "alternatives included.");
  std::stable_sort(all.begin(), all.end(),
                   [](const Comparison& a, const Comparison& b) { return a.ratio() > b.ratio(); });
  report->Table("The worst", {"problem", "devices", "operators", "placements", "optimum ms",
                              "searched ms", "ratio"});
  for (size_t i = 0; i < all.size() && i < 10; ++i) {
    const Comparison& c = all[i];
    report->Row({Text(c.name), Number(c.devices, 0), Number(c.operators, 0),
                 Number(c.placements, 0), Number(1e3 * c.optimum, 3), Number(1e3 * c.found, 3),
                 Number(c.ratio(), 4)});
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("search_optimality");
  const bool tight = absl::GetFlag(FLAGS_low_memory_problems) > 0;
  const absl::Status status = tight ? espalier::RunMemoryLimited(&report) : espalier::Run(&report);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
