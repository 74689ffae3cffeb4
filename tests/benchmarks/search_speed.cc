// Speed of the plan search: proposals per second with full and delta simulation, time per plan, and
// predicted speedup over data parallelism and a single device. Devices are this machine's,
// calibrated with one thread; links are nominal.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "ops/operators/register_all.h"
#include "planner/machine/topology.h"
#include "planner/search/elimination.h"
#include "planner/search/local_search.h"
#include "planner/search/search.h"
#include "tests/benchmarks/measured_machine.h"
#include "tests/benchmarks/rank_processes.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/workload.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(int64_t, proposals, 10000,
          "of the same search, for the rates of full and delta simulation");
ABSL_FLAG(int64_t, budget, 0, "of each plan; 0: the planner's own choice");

namespace espalier {
namespace {

struct Case {
  std::string workload;
  int devices = 0;
  std::string link_name;
  v1::Link link;
  // 0: every device has that link; otherwise the number of devices of a host that share it, with a
  // faster link within the host.
  int per_host = 0;
};

struct Chain {
  double seconds = 0;
  Picoseconds cost = 0;
  int64_t proposals = 0;
  int64_t accepted = 0;
};

v1::Link MakeLink(double bytes_per_second, double latency) {
  v1::Link link;
  link.set_bandwidth(bytes_per_second);
  link.set_latency_seconds(latency);
  return link;
}

absl::StatusOr<std::shared_ptr<const Topology>> Hosts(const Case& c, const v1::Link& inside) {
  std::vector<TopologyNode> nodes = {{"network"}};
  for (int d = 0; d < c.devices; ++d) {
    const std::string host = absl::StrCat("host", d / c.per_host);
    if (d % c.per_host == 0) {
      nodes.push_back(
          {host, "network", false, c.link.bandwidth(), 0, c.link.latency_seconds() / 2});
    }
    nodes.push_back({absl::StrCat("device", d), host, true, inside.bandwidth(), 0,
                     inside.latency_seconds() / 2});
  }
  absl::StatusOr<Topology> made = Topology::Create(nodes);
  if (!made.ok()) return made.status();
  return std::make_shared<const Topology>(*std::move(made));
}

// Runs one chain of the search and the descent from it, as in a search with `proposals` proposals.
absl::StatusOr<Chain> RunChain(const PlanProblem& problem, bool full_only, int64_t proposals) {
  absl::StatusOr<PcgStructure> structure =
      BuildStructure(*problem.registry, *problem.graph, /*forward_only=*/false);
  if (!structure.ok()) return structure.status();
  ConfigTable table(*structure);
  CostTables costs(*structure, table, problem.machine, *problem.cost, problem.optimizer);
  Simulator simulator(*structure, table, costs, full_only);
  const int devices = static_cast<int>(problem.machine.devices.size());
  const SearchSpace space(*structure, {.num_devices = devices});
  Placement data(structure->nodes.size(), nullptr);
  for (NodeId n : structure->LiveNodes()) {
    data[n] = table.Get(n, DataParallel(structure->nodes[n].rule, devices));
  }
  absl::StatusOr<Placement> begin = EliminationPlacement(space, table, costs, data);
  if (!begin.ok()) return begin.status();
  Moves moves(space, table);
  Chain chain;
  // The first run fills the cost tables that both simulations share.
  for (int time = 0; time < 2; ++time) {
    if (absl::Status s = simulator.Reset(*begin); !s.ok()) return s;
    const double start = Seconds();
    absl::StatusOr<McmcResult> result =
        RunMcmc(moves, &simulator, {.budget = proposals - LocalSearchBudget(proposals)});
    if (!result.ok()) return result.status();
    absl::StatusOr<LocalSearchResult> descent =
        RunLocalSearch(moves, &simulator, LocalSearchBudget(proposals));
    if (!descent.ok()) return descent.status();
    chain = {Seconds() - start, simulator.cost(), result->proposals + descent->proposals,
             result->accepted + descent->accepted};
  }
  return chain;
}

absl::Status Run(Report* report) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  auto machine = MeasuredMachine::Make(/*threads=*/1, /*ranks=*/1);
  if (!machine.ok()) return machine.status();
  const v1::Link loopback = MakeLink(2e9, 80e-6);
  const v1::Link slow = MakeLink(1.25e8, 100e-6), fast = MakeLink(1.25e10, 5e-6);
  const std::vector<Case> cases = {{"cnn", 2, "loopback", loopback},
                                   {"lm", 2, "loopback", loopback},
                                   {"llm", 2, "loopback", loopback},
                                   {"lm", 2, "1 Gb/s", slow},
                                   {"lm", 4, "1 Gb/s", slow},
                                   {"lm", 8, "1 Gb/s", slow},
                                   {"lm", 2, "100 Gb/s", fast},
                                   {"lm", 4, "100 Gb/s", fast},
                                   {"lm", 8, "100 Gb/s", fast},
                                   {"lm", 4, "2 hosts, 1 Gb/s", slow, 2},
                                   {"lm", 8, "2 hosts, 1 Gb/s", slow, 4}};
  std::vector<std::vector<Cell>> rates, gains;
  for (const Case& c : cases) {
    absl::StatusOr<Workload> work = MakeWorkload(registry, c.workload);
    if (!work.ok()) return work.status();
    AnalyticCost cost;
    PlanProblem problem;
    problem.registry = &registry;
    problem.graph = &work->graph;
    problem.batch_size = work->batch;
    problem.machine = (*machine)->Devices(c.devices);
    problem.machine.link = c.link;
    if (c.per_host > 0) {
      absl::StatusOr<std::shared_ptr<const Topology>> hosts = Hosts(c, fast);
      if (!hosts.ok()) return hosts.status();
      problem.machine.topology = *hosts;
    }
    problem.optimizer = work->optimizer;
    problem.cost = &cost;
    problem.seconds = Seconds;
    const int64_t proposals = absl::GetFlag(FLAGS_proposals);
    absl::StatusOr<Chain> full = RunChain(problem, true, proposals);
    if (!full.ok()) return full.status();
    absl::StatusOr<Chain> delta = RunChain(problem, false, proposals);
    if (!delta.ok()) return delta.status();
    if (full->cost != delta->cost || full->accepted != delta->accepted) {
      return absl::InternalError(absl::StrCat(c.workload, " on ", c.devices,
                                              ": full and delta simulation end at ", full->cost,
                                              " and ", delta->cost, " ps"));
    }
    const double n = static_cast<double>(delta->proposals);
    rates.push_back({Text(c.workload), Number(c.devices, 0), Text(c.link_name),
                     Number(static_cast<double>(work->graph.nodes().size()), 0),
                     Number(100 * static_cast<double>(delta->accepted) / n, 0),
                     Number(n / full->seconds, 0), Number(n / delta->seconds, 0),
                     Number(full->seconds / delta->seconds, 1)});

    v1::SearchOptions options;
    if (const int64_t budget = absl::GetFlag(FLAGS_budget); budget > 0) options.set_budget(budget);
    absl::StatusOr<v1::Plan> plan = MakePlan(problem, options);
    if (!plan.ok()) return plan.status();
    const double searched = plan->prediction().step_seconds();
    double single = 0, data = 0;
    for (const v1::Alternative& a : plan->alternatives()) {
      (a.name() == "single device" ? single : data) = a.prediction().step_seconds();
    }
    gains.push_back({Text(c.workload), Number(c.devices, 0), Text(c.link_name),
                     Number(static_cast<double>(plan->search().proposals()), 0),
                     Number(plan->search().seconds(), 2), Number(1e3 * single, 2),
                     Number(1e3 * data, 2), Number(1e3 * searched, 2), Number(data / searched, 2),
                     Number(single / searched, 2)});
  }
  report->Table(absl::StrCat("Placements tried per second, the same chain and descent of ",
                             absl::GetFlag(FLAGS_proposals), " proposals"),
                {"model", "devices", "link", "operators", "accepted %", "full /s", "delta /s",
                 "delta gains"});
  for (auto& row : rates) report->Row(std::move(row));
  report->Note(
      "Full and delta simulation accepted as many proposals and ended at the same cost to the "
      "picosecond in every case. Tables of costs were filled by the same chain before.");
  report->Table("Plans: search time and predicted gain",
                {"model", "devices", "link", "proposals", "search s", "single ms",
                 "data parallel ms", "searched ms", "gain over data parallel", "gain over single"});
  for (auto& row : gains) report->Row(std::move(row));
  report->Note(
      "Predicted with the analytic cost model and this machine's calibration. Time includes "
      "simulating and lowering the alternatives.");
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  if (espalier::IsRankProcess(argc, argv)) return espalier::RankMain(argc, argv);
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("search_speed");
  if (absl::Status status = espalier::Run(&report); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
