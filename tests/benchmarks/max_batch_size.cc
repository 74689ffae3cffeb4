// The largest batch of ResNet-50 and 3D U-Net that trains within a memory limit, with and without
// memory planning (MemoryOptions), and its cost in time. Also checks that memory planning changes
// losses by nothing, or by rounding of sums if the batch is tiled. Finds batches by doubling and
// bisection on whether the planner succeeds. Planning uses nominal rates, not measured ones, so
// that batches are reproducible. LLaMAs: max_batch_size.py.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic_cost.h"
#include "tests/benchmarks/image_workloads.h"
#include "tests/benchmarks/report.h"
#include "tests/plans/in_process_training.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(std::vector<std::string>, models,
          std::vector<std::string>({"resnet50", "unet3d", "unet3d_group_norm"}), "which");
ABSL_FLAG(int, rounds, 3, "in each of which all batches train in turn; medians are given");
ABSL_FLAG(int, steps, 2, "timed steps of each training, after an untimed one; 0: no training");
ABSL_FLAG(int, threads, 1, "of the kernels");

namespace espalier {
namespace {

constexpr int kSlices = 8, kMicroBatches = 8, kLossSteps = 6;
constexpr int64_t kRoomy = int64_t{1} << 40;

// With these limits, the largest batch without memory planning is between 4 and 16.
int64_t BudgetOf(const std::string& model) { return int64_t{model == "resnet50" ? 32 : 256} << 20; }

// One way to train a model.
struct Variant {
  std::string name;
  v1::MemoryOptions memory = {};
  int micro_batches = 1;
  int devices = 1;                   // above 1: data parallel
  uint64_t order = 0;                // seed of the order of the examples
  bool nudged = false;               // the examples: see FirstExamples
  int64_t unit = 1;                  // batches are multiples of it
  int64_t batch = 0;                 // the largest that fits
  std::vector<double> seconds = {};  // of one example, by round
};

v1::MemoryOptions Never() {
  v1::MemoryOptions options;
  options.set_disable_swap(true);
  options.set_disable_recompute(true);
  return options;
}

v1::MemoryOptions NoSlices() {
  v1::MemoryOptions options;
  options.set_max_batch_tiles(1);
  return options;
}

std::vector<Variant> VariantsOf(const std::string& model) {
  std::vector<Variant> variants = {{.name = "as it is", .memory = Never()},
                                   {.name = "swaps, recomputation", .memory = NoSlices()},
                                   {.name = "the same, in slices (the default)", .unit = kSlices}};
  if (model == "unet3d_group_norm") {
    variants.push_back({.name = absl::StrCat(kMicroBatches, " micro-batches alone"),
                        .memory = Never(),
                        .micro_batches = kMicroBatches,
                        .unit = kMicroBatches});
  }
  return variants;
}

class Bench {
 public:
  Bench(const OpRegistry& registry, ImageWorkload job) : registry_(registry), job_(std::move(job)) {
    optimizer_.set_name("sgd");
    optimizer_.mutable_learning_rate()->set_peak(0.002);
    (*optimizer_.mutable_attributes())["momentum"].set_f(0.9);
  }

  // Returns ResourceExhausted if it does not fit.
  absl::Status Check(const Variant& v, int64_t batch, int64_t memory) {
    absl::StatusOr<Prepared> prepared = Prepare(v, batch, memory);
    if (!prepared.ok()) return prepared.status();
    return LowerPlan(registry_, prepared->graph, prepared->plan, prepared->options.lowering)
        .status();
  }

  absl::StatusOr<InProcessRun> Train(const Variant& v, int64_t batch, int64_t memory, int steps,
                                     std::shared_ptr<const Dataset> dataset = nullptr) {
    absl::StatusOr<Prepared> prepared = Prepare(v, batch, memory);
    if (!prepared.ok()) return prepared.status();
    prepared->options.steps = steps;
    prepared->options.data_seed = v.order;
    return TrainInProcess(registry_, prepared->graph, prepared->plan,
                          dataset == nullptr ? job_.dataset : dataset, prepared->options);
  }

  // The planner does not know the kernel workspace of an unchanged program. If it does not fit,
  // reduces the batch until it does.
  absl::Status FindLargest(int64_t memory, Variant* v) {
    int64_t low = 0, high = 1;  // in units: `low` fits, `high` does not or is untested
    const int64_t most = job_.dataset->training_examples() / v->unit;
    absl::Status refused;
    for (bool doubling = true; doubling || high - low > 1;) {
      const int64_t next = doubling ? high : (low + high) / 2;
      const absl::Status status = next > most
                                      ? absl::ResourceExhaustedError("the dataset is not larger")
                                      : Check(*v, next * v->unit, memory);
      if (!status.ok() && !absl::IsResourceExhausted(status)) return status;
      if (!status.ok()) refused = status;
      doubling = doubling && status.ok();
      (status.ok() ? low : high) = next;
      if (doubling) high = 2 * next;
    }
    std::fprintf(stderr, "%s, %s: %ld; a larger one: %s\n", job_.name.c_str(), v->name.c_str(),
                 static_cast<long>(low * v->unit), refused.ToString().c_str());
    for (; low > 0; --low) {
      const absl::Status trained = absl::GetFlag(FLAGS_steps) == 0
                                       ? absl::OkStatus()
                                       : Train(*v, low * v->unit, memory, 1).status();
      if (trained.ok()) break;
      if (!absl::IsResourceExhausted(trained)) return trained;
      refused = trained;
    }
    v->batch = low * v->unit;
    return low > 0 ? absl::OkStatus() : refused;
  }

  // Returns the least memory, within 5 %, in which `batch` trains; at most `high`.
  absl::StatusOr<int64_t> LeastMemory(const Variant& v, int64_t batch, int64_t high) {
    int64_t low = 0;
    while (high - low > high / 20) {
      const int64_t middle = (low + high) / 2;
      const absl::Status status = Check(v, batch, middle);
      if (!status.ok() && !absl::IsResourceExhausted(status)) return status;
      (status.ok() ? high : low) = middle;
    }
    return high;
  }

  const ImageWorkload& job() const { return job_; }

 private:
  struct Prepared {
    Graph graph;
    v1::Plan plan;
    TrainingRunOptions options;
  };

  absl::StatusOr<Prepared> Prepare(const Variant& v, int64_t batch, int64_t memory) {
    absl::StatusOr<Graph> graph = ImageModelGraph(registry_, job_.name, batch);
    if (!graph.ok()) return graph.status();
    Prepared prepared;
    prepared.graph = *std::move(graph);
    PlanProblem problem;
    problem.registry = &registry_;
    problem.graph = &prepared.graph;
    problem.batch_size = batch;
    problem.machine = TestMachine(v.devices);
    for (v1::Device& device : problem.machine.devices) device.set_memory_bytes(memory);
    problem.optimizer = optimizer_;
    problem.cost = &cost_;
    v1::SearchOptions search;
    search.set_strategy(v.devices == 1 ? v1::SearchOptions::SINGLE_DEVICE
                                       : v1::SearchOptions::DATA_PARALLEL);
    search.set_micro_batches(v.micro_batches);
    search.set_zero_stage(0);
    *search.mutable_memory() = v.memory;
    absl::StatusOr<v1::Plan> plan = MakePlan(problem, search);
    if (!plan.ok()) return plan.status();
    prepared.plan = *std::move(plan);
    prepared.options.batch_size = batch;
    prepared.options.threads_per_rank = absl::GetFlag(FLAGS_threads);
    prepared.options.lowering.optimizer = optimizer_;
    prepared.options.lowering.seed = 7;
    return prepared;
  }

  const OpRegistry& registry_;
  const ImageWorkload job_;
  v1::Optimizer optimizer_;
  AnalyticCost cost_;
};

using Rows = std::vector<std::vector<Cell>>;

absl::Status Compare(Bench& bench, int64_t budget, Rows* rows) {
  std::vector<Variant> variants = VariantsOf(bench.job().name);
  for (Variant& v : variants) {
    if (absl::Status status = bench.FindLargest(budget, &v); !status.ok()) return status;
  }
  const int steps = absl::GetFlag(FLAGS_steps);
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds) && steps > 0; ++round) {
    for (Variant& v : variants) {
      absl::StatusOr<InProcessRun> run = bench.Train(v, v.batch, budget, 1 + steps);
      if (!run.ok()) return run.status();
      run->step_seconds.erase(run->step_seconds.begin());
      v.seconds.push_back(Median(run->step_seconds) / static_cast<double>(v.batch));
    }
  }
  const Variant& base = variants[0];
  for (const Variant& v : variants) {
    const double seconds = v.seconds.empty() ? 0 : Median(v.seconds);
    const double alone = v.seconds.empty() ? 0 : Median(base.seconds);
    rows->push_back({Text(bench.job().name), Number(static_cast<double>(budget >> 20), 0),
                     Text(v.name), Number(static_cast<double>(v.batch), 0),
                     Number(static_cast<double>(v.batch) / static_cast<double>(base.batch), 1),
                     Number(1e3 * seconds, 2), Number(alone > 0 ? seconds / alone : 0, 2)});
  }
  return absl::OkStatus();
}

// Compares losses with full memory and with the least memory of each variant. Every step sees the
// same examples. The effect of rounding alone is measured with another order of the examples,
// another rounding of them, and with several devices, which split every sum.
absl::Status CompareLosses(Bench& bench, Rows* rows) {
  std::vector<Variant> variants = VariantsOf(bench.job().name);
  const int64_t batch = kSlices;
  absl::StatusOr<std::shared_ptr<const Dataset>> examples =
      FirstExamples(*bench.job().dataset, batch);
  if (!examples.ok()) return examples.status();
  absl::StatusOr<std::shared_ptr<const Dataset>> nudged =
      FirstExamples(*bench.job().dataset, batch, /*nudged=*/true);
  if (!nudged.ok()) return nudged.status();
  absl::StatusOr<InProcessRun> expected =
      bench.Train(variants[0], batch, kRoomy, kLossSteps, *examples);
  if (!expected.ok()) return expected.status();
  absl::StatusOr<int64_t> most = bench.LeastMemory(variants[0], batch, int64_t{1} << 32);
  if (!most.ok()) return most.status();
  variants.resize(3);
  variants.push_back({.name = absl::StrCat(kSlices, " devices, data parallel"),
                      .memory = Never(),
                      .devices = kSlices});
  variants.push_back(
      {.name = "as it is, examples in another order", .memory = Never(), .order = 1});
  variants.push_back(
      {.name = "as it is, pixels rounded otherwise", .memory = Never(), .nudged = true});
  for (size_t i = 1; i < variants.size(); ++i) {
    const bool only_rounded = variants[i].order > 0 || variants[i].nudged;
    const std::shared_ptr<const Dataset>& data = variants[i].nudged ? *nudged : *examples;
    absl::StatusOr<int64_t> memory =
        only_rounded ? kRoomy : bench.LeastMemory(variants[i], batch, *most);
    if (!memory.ok()) return memory.status();
    absl::StatusOr<InProcessRun> run = bench.Train(variants[i], batch, *memory, kLossSteps, data);
    // Kernels may need more workspace than was reserved.
    while (absl::IsResourceExhausted(run.status()) && *memory < 4 * *most) {
      *memory += *most / 20;
      run = bench.Train(variants[i], batch, *memory, kLossSteps, data);
    }
    if (!run.ok()) return run.status();
    const double apart = LargestRelativeDifference(*expected, *run);
    const int64_t needed = only_rounded ? *most : *memory;
    rows->push_back({Text(bench.job().name),
                     Number(static_cast<double>(batch), 0),
                     Text(variants[i].name),
                     Number(static_cast<double>(*most) / (1 << 20), 1),
                     Number(static_cast<double>(needed) / (1 << 20), 1),
                     Number(expected->losses.front(), 4),
                     Number(expected->losses.back(), 4),
                     {absl::StrCat(apart == 0 ? "none" : absl::StrCat(apart)), apart}});
  }
  return absl::OkStatus();
}

absl::Status Run(Report* report) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  Rows batches, losses;
  std::string models;
  for (const std::string& name : absl::GetFlag(FLAGS_models)) {
    absl::StatusOr<ImageWorkload> job = MakeImageWorkload(name);
    if (!job.ok()) return job.status();
    absl::StrAppend(&models, name, ": ", job->description, ". ");
    Bench bench(registry, *std::move(job));
    if (absl::Status s = Compare(bench, BudgetOf(name), &batches); !s.ok()) return s;
    if (absl::GetFlag(FLAGS_steps) == 0) continue;
    if (absl::Status s = CompareLosses(bench, &losses); !s.ok()) return s;
  }
  report->Table("The largest batch within a budget",
                {"model", "MiB", "how", "batch", "times as many", "ms per example", "slowdown"});
  for (auto& row : batches) report->Row(std::move(row));
  report->Note(absl::StrCat(models, "Digits, enlarged; SGD with momentum; ",
                            absl::GetFlag(FLAGS_threads), " thread(s)."));
  if (losses.empty()) return absl::OkStatus();
  report->Table(absl::StrCat("Losses of ", kLossSteps, " steps with as little memory as possible"),
                {"model", "batch", "how", "planned MiB as it is", "MiB", "first loss", "last loss",
                 "largest relative difference"});
  for (auto& row : losses) report->Row(std::move(row));
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("max_batch_size");
  if (absl::Status status = espalier::Run(&report); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
