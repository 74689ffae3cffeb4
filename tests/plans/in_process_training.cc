#include "tests/plans/in_process_training.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "worker/collective/in_process_communicator.h"
#include "worker/data/batch_loader.h"
#include "worker/device/device.h"
#include "worker/executor/executor.h"

namespace espalier {
namespace {

struct RankResult {
  absl::Status status;
  std::map<std::string, std::vector<double>> reported;
  std::vector<double> seconds;
  int64_t peak_bytes = 0;
  std::map<std::string, std::vector<char>> parameters;
};

absl::Status RunRank(const v1::Program& program, int64_t memory, Communicator* communicator,
                     std::shared_ptr<const Dataset> dataset, const TrainingRunOptions& options,
                     RankResult* result) {
  BatchLoaderOptions loading;
  loading.batch_size = options.batch_size;
  loading.seed = options.data_seed.value_or(options.lowering.seed);
  absl::StatusOr<std::unique_ptr<BatchLoader>> loader = BatchLoader::Create(dataset, loading);
  if (!loader.ok()) return loader.status();
  std::unique_ptr<Device> device = NewCpuDevice({options.threads_per_rank, memory});
  if (absl::Status status = device->EnterThread(KernelThreads::kOpenMp); !status.ok())
    return status;
  absl::StatusOr<std::unique_ptr<Executor>> executor = Executor::Create(
      program, {.device = device.get(), .communicator = communicator, .source = loader->get()});
  if (!executor.ok()) return executor.status();
  for (int step = 0; step < options.steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    absl::StatusOr<StepResult> done = (*executor)->Step(step);
    if (!done.ok()) return done.status();
    result->seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    for (const auto& [name, value] : done->values) {
      std::vector<double>& values = result->reported[name];
      values.resize(options.steps, 0);
      values[step] = value;
    }
  }
  result->peak_bytes = (*executor)->measured_peak_bytes();
  for (int b = 0; b < (*executor)->num_buffers(); ++b) {
    if ((*executor)->buffer(b).kind() != v1::PARAMETER_SHARD) continue;
    std::vector<char>& bytes = result->parameters[(*executor)->buffer(b).name()];
    bytes.resize((*executor)->spec(b).bytes());
    absl::Status read =
        (*executor)->ReadBuffer(b, bytes.data(), static_cast<int64_t>(bytes.size()));
    if (!read.ok()) return read;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InProcessRun> TrainInProcess(const OpRegistry& registry, const Graph& graph,
                                            const v1::Plan& plan,
                                            std::shared_ptr<const Dataset> dataset,
                                            const TrainingRunOptions& options) {
  absl::StatusOr<LoweredPlan> lowered = LowerPlan(registry, graph, plan, options.lowering);
  if (!lowered.ok()) return lowered.status();
  const int ranks = static_cast<int>(lowered->training.size());
  std::vector<std::unique_ptr<Communicator>> communicators =
      NewInProcessCommunicators(ranks, absl::Seconds(60));
  std::vector<RankResult> results(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank].status = RunRank(lowered->training[rank], plan.devices(rank).memory_bytes(),
                                     communicators[rank].get(), dataset, options, &results[rank]);
      if (!results[rank].status.ok()) communicators[rank]->Abort("another rank failed");
    });
  }
  for (std::thread& thread : threads) thread.join();
  InProcessRun run;
  run.step_seconds.assign(options.steps, 0);
  for (const RankResult& result : results) {
    if (!result.status.ok() && !absl::IsCancelled(result.status)) return result.status;
  }
  for (const RankResult& result : results) {
    if (!result.status.ok()) return result.status;
    for (const auto& [name, values] : result.reported) {
      std::vector<double>& sums = run.reported[name];
      sums.resize(options.steps, 0);
      for (int step = 0; step < options.steps; ++step) sums[step] += values[step];
    }
    for (int step = 0; step < options.steps; ++step) {
      run.step_seconds[step] = std::max(run.step_seconds[step], result.seconds[step]);
    }
    run.measured_peak_bytes.push_back(result.peak_bytes);
  }
  run.losses = run.reported["loss"];
  run.parameters = std::move(results[0].parameters);
  return run;
}

double LargestRelativeDifference(const InProcessRun& reference, const InProcessRun& run) {
  double worst = 0;
  for (size_t step = 0; step < reference.losses.size(); ++step) {
    const double difference =
        std::abs(run.losses[step] - reference.losses[step]) / std::abs(reference.losses[step]);
    if (!(difference <= worst)) worst = difference;  // keeps NaN
  }
  return worst;
}

Machine TestMachine(int count) {
  Machine machine;
  for (int i = 0; i < count; ++i) {
    v1::Device device;
    device.set_kind(v1::Device::CPU);
    device.set_model("test");
    device.set_memory_bytes(int64_t{8} << 30);
    device.set_matmul_flops(5e10);
    device.set_memory_bandwidth(1e10);
    device.set_op_overhead_seconds(2e-6);
    device.set_threads(1);
    machine.devices.push_back(device);
  }
  machine.link.set_bandwidth(2e9);
  machine.link.set_latency_seconds(2e-5);
  return machine;
}

v1::Optimizer AdamW(double learning_rate) {
  v1::Optimizer optimizer;
  optimizer.set_name("adamw");
  optimizer.mutable_learning_rate()->set_peak(learning_rate);
  (*optimizer.mutable_attributes())["weight_decay"].set_f(0.01);
  optimizer.set_clip_norm(1.0);
  return optimizer;
}

absl::StatusOr<v1::Plan> ManualPlan(
    const PlanProblem& problem,
    const std::function<Choice(int index, const Node& node, const SplitRule& rule)>& choose) {
  v1::SearchOptions options;
  options.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
  absl::StatusOr<v1::Plan> plan = MakePlan(problem, options);
  if (!plan.ok()) return plan.status();
  std::map<std::string, NodeId> ids;
  for (size_t n = 0; n < problem.graph->nodes().size(); ++n) {
    ids[problem.graph->node(static_cast<NodeId>(n)).name] = static_cast<NodeId>(n);
  }
  for (int i = 0; i < plan->operators_size(); ++i) {
    v1::OperatorPlan& op = *plan->mutable_operators(i);
    const NodeId id = ids.at(op.node());
    const Node& node = problem.graph->node(id);
    const SplitRule rule = SplitOf(*problem.registry->Find(node.op), problem.graph->TypesOf(id));
    const Choice choice = choose(i, node, rule);
    op.clear_degrees();
    for (const auto& [axis, degree] : choice.degrees) (*op.mutable_degrees())[axis] = degree;
    op.mutable_devices()->Assign(choice.devices.begin(), choice.devices.end());
  }
  plan->clear_parallel_operators();
  v1::SearchOptions imported;
  imported.set_strategy(v1::SearchOptions::IMPORTED);
  *imported.mutable_imported() = *plan;
  return MakePlan(problem, imported);
}

Choice SplitFirst(int index, const SplitRule& rule, const std::vector<AxisKind>& kinds, int parts) {
  for (AxisKind kind : kinds) {
    for (const Axis& axis : rule.axes) {
      if (axis.kind != kind || axis.size % parts != 0 || axis.size < parts) continue;
      Choice choice;
      choice.degrees[axis.name] = parts;
      for (int d = 0; d < parts; ++d) choice.devices.push_back(d);
      return choice;
    }
  }
  return {{}, {index % parts}};
}

Choice SamplesByParameters(int index, const SplitRule& rule) {
  Choice choice;
  for (AxisKind kind : {AxisKind::kSample, AxisKind::kParameter}) {
    for (const Axis& axis : rule.axes) {
      if (axis.kind != kind || axis.size % 2 != 0) continue;
      choice.degrees[axis.name] = 2;
      break;
    }
  }
  if (choice.degrees.size() < 2) return SplitFirst(index, rule, {AxisKind::kSample}, 4);
  choice.devices = {0, 1, 2, 3};
  return choice;
}

absl::StatusOr<v1::Plan> WithZeroStage(const PlanProblem& problem,
                                       const absl::StatusOr<v1::Plan>& plan, int stage) {
  if (!plan.ok()) return plan.status();
  v1::SearchOptions imported;
  imported.set_strategy(v1::SearchOptions::IMPORTED);
  *imported.mutable_imported() = *plan;
  imported.mutable_imported()->set_zero_stage(stage);
  return MakePlan(problem, imported);
}

}  // namespace espalier
