#include "planner/memory/offload_estimate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

namespace espalier {
namespace {

constexpr int64_t kMiB = 1 << 20;

// Forward steps 0 to n - 1, backward steps n to 2n - 1: step i computes activation i from
// activation i - 1; backward step 2n - 1 - i reads both and computes gradient i from gradient i +
// 1. Sizes and times differ by step.
OffloadProblem Chain(int n, double seconds) {
  OffloadProblem problem;
  for (int k = 0; k < 2 * n; ++k) problem.seconds.push_back(seconds * (1 + k * 7 % 5));
  for (int i = 0; i < n; ++i) {
    std::set<int> uses = {i, 2 * n - 1 - i};
    if (i + 1 < n) uses.insert({i + 1, 2 * n - 2 - i});
    OffloadTensor activation{(1 + i * 3 % 4) * kMiB, {uses.begin(), uses.end()}, i, true, i, {}};
    if (i > 0) activation.from = {i - 1};
    problem.tensors.push_back(activation);
  }
  for (int i = 0; i < n; ++i) {
    const int step = 2 * n - 1 - i;
    OffloadTensor gradient{(1 + i * 3 % 4) * kMiB, {step}, step, true};
    if (i > 0) gradient.uses.push_back(step + 1);
    problem.tensors.push_back(gradient);
  }
  return problem;
}

OffloadEstimateProblem EstimateProblemOf(const OffloadProblem& problem) {
  OffloadEstimateProblem offload;
  offload.seconds = problem.seconds;
  offload.limit = problem.limit;
  offload.live.assign(problem.seconds.size(), problem.fixed_bytes);
  std::map<int, std::vector<int>> idle_of;  // by tensor
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    const OffloadTensor& tensor = problem.tensors[t];
    for (int k = tensor.uses.front(); k <= tensor.uses.back(); ++k) offload.live[k] += tensor.bytes;
    for (size_t u = 1; u < tensor.uses.size(); ++u) {
      if (tensor.uses[u] - tensor.uses[u - 1] < 2) continue;
      idle_of[static_cast<int>(t)].push_back(static_cast<int>(offload.idle.size()));
      IdleTensor& idle = offload.idle.emplace_back();
      idle.bytes = tensor.bytes;
      idle.after = tensor.uses[u - 1];
      idle.before = tensor.uses[u];
      if (tensor.producer < 0) continue;
      idle.recompute_seconds = problem.seconds[tensor.producer];
      for (int from : tensor.from) {
        if (problem.tensors[from].uses.back() < idle.before) idle.recompute_seconds = -1;
        for (int f : idle_of[from]) {
          const IdleTensor& other = offload.idle[f];
          if (other.after < idle.before && idle.before < other.before) idle.from.push_back(f);
        }
      }
    }
  }
  return offload;
}

int64_t PeakLiveBytes(const OffloadProblem& problem) {
  const std::vector<int64_t> live = EstimateProblemOf(problem).live;
  return *std::max_element(live.begin(), live.end());
}

TEST(OffloadEstimateTest, CostsNothingIfItFits) {
  OffloadProblem problem = Chain(10, 1e-3);
  problem.limit = PeakLiveBytes(problem);
  const OffloadEstimate offload = EstimateOffload(EstimateProblemOf(problem), {});
  EXPECT_EQ(offload.seconds, 0);
  EXPECT_EQ(offload.bytes_left, 0);
}

TEST(OffloadEstimateTest, OverlappedCopiesCostNothing) {
  OffloadProblem problem = Chain(40, 1e-3);
  problem.limit = PeakLiveBytes(problem) / 3;
  OffloadSettings settings;
  settings.recompute = false;
  settings.host_bandwidth = 1e11;
  const OffloadEstimate offload = EstimateOffload(EstimateProblemOf(problem), settings);
  EXPECT_EQ(offload.bytes_left, 0);
  EXPECT_NEAR(offload.seconds, 0, 1e-9);
}

// One tensor over the limit, idle for three steps of a millisecond.
TEST(OffloadEstimateTest, TakesTheCheaperOfSwapAndRecompute) {
  OffloadEstimateProblem problem;
  problem.seconds.assign(5, 1e-3);
  problem.live.assign(5, 2 * kMiB);
  problem.limit = kMiB;
  problem.live[0] = problem.live[1] = problem.live[3] = problem.live[4] = kMiB;
  problem.idle = {{kMiB, 0, 4, true, 7e-3}};
  OffloadSettings settings;
  settings.host_latency = 0;
  settings.host_bandwidth = kMiB / 1e-3;  // out and in within the neighboring steps
  EXPECT_NEAR(EstimateOffload(problem, settings).seconds, 0, 1e-12);
  settings.host_bandwidth = kMiB / 3e-3;  // each two steps too long
  EXPECT_NEAR(EstimateOffload(problem, settings).seconds, 4e-3, 1e-12);
  settings.host_bandwidth = kMiB / 30e-3;
  EXPECT_NEAR(EstimateOffload(problem, settings).seconds, 7e-3, 1e-12);
  settings.recompute = false;
  EXPECT_NEAR(EstimateOffload(problem, settings).seconds, 58e-3, 1e-12);
  settings.host_bytes = kMiB - 1;
  EXPECT_EQ(EstimateOffload(problem, settings).bytes_left, kMiB);
}

TEST(OffloadEstimateTest, NeverRecomputesFromEvictedTensors) {
  OffloadEstimateProblem problem;
  problem.seconds.assign(6, 1e-3);
  problem.live = {kMiB, 2 * kMiB, 3 * kMiB, 2 * kMiB, kMiB, kMiB};
  problem.limit = kMiB;
  problem.idle = {{kMiB, 0, 5, true, 1e-3}, {kMiB, 1, 4, true, 1e-3, {0}}};
  OffloadSettings settings;
  settings.swap = false;
  EXPECT_EQ(EstimateOffload(problem, settings).bytes_left, kMiB);
  problem.idle[1].from.clear();
  EXPECT_EQ(EstimateOffload(problem, settings).bytes_left, 0);
  EXPECT_NEAR(EstimateOffload(problem, settings).seconds, 2e-3, 1e-12);
}

// Limits from ample to the lower bound, hosts from slow to fast.
TEST(OffloadEstimateTest, IsCloseToThePlannedTime) {
  int compared = 0, close = 0, disagreed = 0;
  for (int n : {6, 15, 40}) {
    for (double bandwidth : {1e8, 3e8, 1e9, 3e9, 1e10}) {
      for (int percent = 95; percent >= 15; percent -= 10) {
        for (bool recompute : {false, true}) {
          OffloadProblem problem = Chain(n, 1e-3);
          double alone = 0;
          for (double s : problem.seconds) alone += s;
          problem.limit = PeakLiveBytes(problem) * percent / 100;
          OffloadSettings settings;
          settings.host_bandwidth = bandwidth;
          settings.recompute = recompute;
          const OffloadPlan plan = PlanOffload(problem, settings);
          const OffloadEstimate offload = EstimateOffload(EstimateProblemOf(problem), settings);
          if (plan.problem.empty() != (offload.bytes_left == 0)) {
            ++disagreed;
            continue;
          }
          if (!plan.problem.empty()) continue;
          ++compared;
          // Relative to the step.
          const double real = plan.seconds / alone, estimate = 1 + offload.seconds / alone;
          close += std::abs(estimate - real) <= 0.1 * real;
        }
      }
    }
  }
  std::printf("%d of %d within 10 %% of the step, %d disagree on whether it fits\n", close,
              compared, disagreed);
  EXPECT_GE(compared, 150);
  EXPECT_GE(close, compared * 9 / 10);
  EXPECT_LE(disagreed, compared / 40);
}

}  // namespace
}  // namespace espalier
