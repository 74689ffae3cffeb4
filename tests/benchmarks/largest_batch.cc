// The largest batch of a ResNet-50 and of a 3D U-Net that trains within a memory limit, with and
// without memory planning, and what it costs; and that less memory changes no bit of the losses.
// Batches are found by doubling and halving with the planner's refusal as the judge. Planning uses
// stated rates, not measured ones, so that batches repeat. (LLaMAs: largest_batch.py.)
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic.h"
#include "tests/benchmarks/picture_jobs.h"
#include "tests/benchmarks/report.h"
#include "tests/plans/in_process_training.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(std::vector<std::string>, models,
          std::vector<std::string>({"resnet50", "unet3d", "unet3d_group_norm"}), "which");
ABSL_FLAG(int, rounds, 3, "in each of which all batches train in turn; medians are printed");
ABSL_FLAG(int, steps, 3, "of each training, besides a first one that is not timed");
ABSL_FLAG(int, threads, 1, "of the kernels");
ABSL_FLAG(bool, only_batches, false, "train nothing; print what stands in a larger batch's way");

namespace espalier {
namespace {

constexpr int kLossSteps = 6;
constexpr int kMicroBatches[] = {2, 4, 8};

// So that the largest batch without planning is between 4 and 16.
int64_t BudgetOf(const std::string& model) {
  return int64_t{model == "resnet50" ? 32 : 192} << 20;
}

proto::MemoryOptions Never() {
  proto::MemoryOptions options;
  options.set_disable_swap(true);
  options.set_disable_recompute(true);
  return options;
}

// One way to train a model within a budget.
struct Variant {
  proto::MemoryOptions memory;
  int micro_batches = 1;
  int64_t batch = 0;               // the largest
  proto::Plan plan;                // of that batch
  std::vector<double> seconds = {};  // of one example, by round
};

class Bench {
 public:
  Bench(const OpRegistry& registry, PictureJob job, int64_t budget)
      : registry_(registry), job_(std::move(job)), budget_(budget) {
    optimizer_.set_name("sgd");
    optimizer_.mutable_learning_rate()->set_peak(0.02);
    (*optimizer_.mutable_attributes())["momentum"].set_f(0.9);
  }

  absl::StatusOr<proto::Plan> Plan(int64_t batch, int64_t memory,
                                   const proto::MemoryOptions& options, int micro_batches = 1) {
    auto graph = PictureGraph(registry_, job_.name, batch);
    if (!graph.ok()) return graph.status();
    PlanProblem problem;
    problem.registry = &registry_;
    problem.graph = &*graph;
    problem.batch_size = batch;
    problem.machine = TestMachine(1);
    problem.machine.devices[0].set_memory_bytes(memory);
    problem.optimizer = optimizer_;
    problem.cost = &cost_;
    proto::SearchOptions search;
    search.set_strategy(proto::SearchOptions::SINGLE_DEVICE);
    search.set_micro_batches(micro_batches);
    *search.mutable_memory() = options;
    return MakePlan(problem, search);
  }

  absl::StatusOr<TrainingRun> Train(const proto::Plan& plan, int steps) {
    auto graph = PictureGraph(registry_, job_.name, plan.batch_size());
    if (!graph.ok()) return graph.status();
    TrainingRunOptions options;
    options.steps = steps;
    options.batch_size = plan.batch_size();
    options.threads_per_rank = absl::GetFlag(FLAGS_threads);
    options.lowering.optimizer = optimizer_;
    options.lowering.seed = 7;
    return TrainInProcess(registry_, *graph, plan, job_.dataset, options);
  }

  // Sets batch and plan. The planner does not know what kernels need beside a program that it
  // leaves as it is: where that does not fit, the batch is made smaller until it does.
  absl::Status FindLargest(Variant* v) {
    const int64_t unit = v->micro_batches;
    int64_t low = 0, high = 1;  // in micro-batches' examples: the one fits, the other does not
    const int64_t most = job_.dataset->training_examples() / unit;
    const auto fits = [&](int64_t n) -> absl::StatusOr<bool> {
      if (n > most) return false;
      absl::StatusOr<proto::Plan> plan = Plan(n * unit, budget_, v->memory, v->micro_batches);
      if (!plan.ok()) {
        if (absl::IsResourceExhausted(plan.status())) {
          refusal_ = std::string(plan.status().message());
          return false;
        }
        return plan.status();
      }
      v->plan = *std::move(plan);
      return true;
    };
    for (bool doubling = true; doubling || high - low > 1;) {
      const int64_t next = doubling ? high : (low + high) / 2;
      absl::StatusOr<bool> good = fits(next);
      if (!good.ok()) return good.status();
      doubling = doubling && *good;
      (*good ? low : high) = next;
      if (doubling) high = 2 * next;
    }
    if (low == 0) return absl::ResourceExhaustedError(refusal_);
    while (low > 0) {
      absl::StatusOr<bool> good = fits(low);
      if (!good.ok()) return good.status();
      const absl::Status trained = Train(v->plan, 1).status();
      if (trained.ok()) break;
      if (!absl::IsResourceExhausted(trained)) return trained;
      --low;
    }
    v->batch = low * unit;
    return absl::OkStatus();
  }

  absl::Status Time(Variant* v) {
    absl::StatusOr<TrainingRun> run = Train(v->plan, 1 + absl::GetFlag(FLAGS_steps));
    if (!run.ok()) return run.status();
    run->step_seconds.erase(run->step_seconds.begin());
    v->seconds.push_back(Median(run->step_seconds) / static_cast<double>(v->batch));
    return absl::OkStatus();
  }

  const PictureJob& job() const { return job_; }
  int64_t budget() const { return budget_; }
  const std::string& refusal() const { return refusal_; }

 private:
  const OpRegistry& registry_;
  const PictureJob job_;
  const int64_t budget_;
  proto::Optimizer optimizer_;
  AnalyticCost cost_;
  std::string refusal_;  // the last
};

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  using namespace espalier;
  absl::ParseCommandLine(argc, argv);
  OpRegistry registry;
  RegisterAllOperators(registry);
  for (const std::string& name : absl::GetFlag(FLAGS_models)) {
    auto job = MakePictureJob(name);
    if (!job.ok()) { std::printf("%s\n", job.status().ToString().c_str()); return 1; }
    Bench bench(registry, *job, BudgetOf(name));
    for (int64_t b : {1, 2, 4, 8}) {
      auto plan = bench.Plan(b, int64_t{64} << 30, {});
      std::printf("%s batch %ld needs %.1f MiB\n", name.c_str(), long(b), plan->prediction().peak_bytes(0) / 1048576.0);
    }
    for (bool planned : {false, true}) {
      Variant v{planned ? proto::MemoryOptions() : Never()};
      auto s = bench.FindLargest(&v);
      std::printf("%s %d: %ld %s\n   %s\n", name.c_str(), planned, long(v.batch), s.ToString().c_str(), bench.refusal().c_str());
      fflush(stdout);
    }
  }
}
