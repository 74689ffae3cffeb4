// What encrypting the tensors between hosts costs: messages and sums between two processes, and
// training steps of two workers, encrypted and in clear, that take turns in one run. Loopback
// stands for the network, so the processes' cores do the kernel's work of both ends; over a real
// network they do less besides encrypting.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "tests/benchmarks/rank_processes.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/workload.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(int, rounds, 9, "turns of the messages");
ABSL_FLAG(int, training_rounds, 5, "turns of the training steps; 0: none");
ABSL_FLAG(int, steps, 10, "of each turn");
ABSL_FLAG(std::vector<std::string>, workloads, std::vector<std::string>({"lm", "mlp"}),
          "that two workers train (workload.h)");
ABSL_FLAG(std::vector<std::string>, networks, std::vector<std::string>({"encrypted", "plain"}),
          "encrypted, plain, shared");

namespace espalier {
namespace {

const std::map<std::string, RankNetwork>& Networks() {
  static const auto* const all =
      new std::map<std::string, RankNetwork>{{"encrypted", RankNetwork::kEncrypted},
                                             {"plain", RankNetwork::kPlain},
                                             {"shared", RankNetwork::kSharedMemory}};
  return *all;
}

std::string SizeOf(int64_t bytes) {
  return bytes < (1 << 20) ? absl::StrCat(bytes >> 10, " KiB") : absl::StrCat(bytes >> 20, " MiB");
}

// Of the first network's times to the others', turn by turn.
double MedianRatio(const std::vector<double>& times, const std::vector<double>& others) {
  std::vector<double> ratios;
  for (size_t i = 0; i < times.size(); ++i) ratios.push_back(times[i] / others[i]);
  return Median(ratios);
}

absl::StatusOr<v1::Plan> DataParallel(const std::string& name) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  absl::StatusOr<Workload> work = MakeWorkload(registry, name);
  if (!work.ok()) return work.status();
  PlanProblem problem;
  problem.registry = &registry;
  problem.graph = &work->graph;
  problem.batch_size = work->batch;
  problem.optimizer = work->optimizer;
  for (int i = 0; i < 2; ++i) {
    v1::Device device;
    device.set_kind(v1::Device::CPU);
    device.set_memory_bytes(int64_t{8} << 30);
    device.set_matmul_flops(5e10);
    device.set_memory_bandwidth(1e10);
    problem.machine.devices.push_back(device);
  }
  problem.machine.link.set_bandwidth(1e9);
  v1::SearchOptions search;
  search.set_strategy(v1::SearchOptions::DATA_PARALLEL);
  search.set_zero_stage(0);
  return MakePlan(problem, search);
}

absl::Status Messages(const std::vector<std::string>& networks, Report* report) {
  const std::vector<int64_t> sizes = {4 << 10, 4 << 20, 64 << 20};
  std::vector<RankNetwork> chosen;
  for (const std::string& name : networks) chosen.push_back(Networks().at(name));
  absl::StatusOr<std::vector<TransportTimes>> times =
      MeasureTransports(chosen, sizes, absl::GetFlag(FLAGS_rounds));
  if (!times.ok()) return times.status();
  std::vector<std::string> columns = {"what", "bytes"};
  for (const std::string& name : networks) columns.push_back(absl::StrCat(name, ", ms"));
  for (size_t i = 1; i < networks.size(); ++i) {
    columns.push_back(absl::StrCat(networks[0], " / ", networks[i]));
  }
  report->Table("Two processes", columns);
  for (const bool message : {true, false}) {
    for (const int64_t bytes : sizes) {
      const auto of = [&](size_t i) {
        return message ? (*times)[i].message.at(bytes) : (*times)[i].all_reduce.at(bytes);
      };
      std::vector<Cell> row = {Text(message ? "message" : "all-reduce, f32"), Text(SizeOf(bytes))};
      for (size_t i = 0; i < networks.size(); ++i) row.push_back(Number(1e3 * Median(of(i)), 3));
      for (size_t i = 1; i < networks.size(); ++i) {
        row.push_back(Number(MedianRatio(of(0), of(i)), 2));
      }
      report->Row(row);
    }
  }
  report->Note("Medians; ratios are medians of the turns' ratios.");
  return absl::OkStatus();
}

absl::Status Training(const std::vector<std::string>& networks, Report* report) {
  std::vector<std::string> columns = {"workload"};
  for (const std::string& name : networks) columns.push_back(absl::StrCat(name, ", steps/s"));
  for (size_t i = 1; i < networks.size(); ++i) {
    columns.push_back(absl::StrCat("step, ", networks[0], " / ", networks[i]));
  }
  report->Table("Two workers, data parallel", columns);
  for (const std::string& workload : absl::GetFlag(FLAGS_workloads)) {
    absl::StatusOr<v1::Plan> plan = DataParallel(workload);
    if (!plan.ok()) return plan.status();
    std::vector<std::vector<double>> seconds(networks.size());
    double loss = 0;
    for (int round = 0; round < absl::GetFlag(FLAGS_training_rounds); ++round) {
      for (size_t i = 0; i < networks.size(); ++i) {
        RankProcessOptions options;
        options.workload = workload;
        options.steps = absl::GetFlag(FLAGS_steps);
        options.profiled_steps = 0;
        options.network = Networks().at(networks[i]);
        absl::StatusOr<RankProcessResult> result = TrainInRankProcesses(*plan, options);
        if (!result.ok()) return result.status();
        if (loss == 0) loss = result->last_loss;
        if (loss != result->last_loss) {
          return absl::InternalError(absl::StrCat(workload, ": the loss depends on the network"));
        }
        seconds[i].push_back(result->median_seconds);
      }
    }
    std::vector<Cell> row = {Text(workload)};
    for (const auto& of : seconds) row.push_back(Number(1 / Median(of), 2));
    for (size_t i = 1; i < networks.size(); ++i) {
      row.push_back(Number(MedianRatio(seconds[0], seconds[i]), 3));
    }
    report->Row(row);
  }
  return absl::OkStatus();
}

int Main() {
  const std::vector<std::string> networks = absl::GetFlag(FLAGS_networks);
  for (const std::string& name : networks) {
    if (Networks().count(name) > 0) continue;
    std::fprintf(stderr, "--networks: '%s'; accepted: encrypted, plain, shared\n", name.c_str());
    return 2;
  }
  Report report("tensor_encryption");
  absl::Status status = Messages(networks, &report);
  if (status.ok() && absl::GetFlag(FLAGS_training_rounds) > 0) status = Training(networks, &report);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  if (espalier::IsRankProcess(argc, argv)) return espalier::RankMain(argc, argv);
  absl::ParseCommandLine(argc, argv);
  return espalier::Main();
}
