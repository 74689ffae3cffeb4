#include "planner/memory/offload_recompute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

namespace espalier {
namespace {

// Forward steps 0..n-1, backward steps n..2n-1: step i computes activation i from activation i-1;
// backward step 2n-1-i reads activations i and i-1 and computes gradient i from gradient i+1.
OffloadProblem Chain(int n, int64_t bytes, double seconds) {
  OffloadProblem problem;
  problem.seconds.assign(2 * n, seconds);
  for (int i = 0; i < n; ++i) {
    OffloadTensor activation{bytes, {i}, i, true, i, {}};
    if (i > 0) activation.from = {i - 1};
    if (i + 1 < n) activation.uses.push_back(i + 1);
    if (i + 1 < n) activation.uses.push_back(2 * n - 2 - i);
    activation.uses.push_back(2 * n - 1 - i);
    std::sort(activation.uses.begin(), activation.uses.end());
    activation.uses.erase(std::unique(activation.uses.begin(), activation.uses.end()),
                          activation.uses.end());
    problem.tensors.push_back(activation);
  }
  for (int i = 0; i < n; ++i) {
    const int step = 2 * n - 1 - i;
    OffloadTensor gradient{bytes, {step}, step, true};
    if (i > 0) gradient.uses.push_back(step + 1);
    problem.tensors.push_back(gradient);
  }
  return problem;
}

// Simulates the plan independently: every tensor is resident where it is used, recomputation finds
// its inputs, what is copied back was copied out after its last write, and memory stays within the
// limit. Returns the peak.
int64_t Replay(const OffloadProblem& problem, const OffloadPlan& plan) {
  const int steps = static_cast<int>(problem.seconds.size());
  const auto resident = [&](int t, int k) {
    const OffloadTensor& tensor = problem.tensors[t];
    if (k < tensor.uses.front() || k > tensor.uses.back()) return false;
    for (const Eviction& a : plan.evictions) {
      if (a.tensor == t && a.away <= k && k < a.back) return false;
    }
    return true;
  };
  std::set<int> on_host;
  for (const Eviction& a : plan.evictions) {
    const OffloadTensor& tensor = problem.tensors[a.tensor];
    EXPECT_LT(a.after, a.away);
    EXPECT_LE(a.away, a.back);
    EXPECT_LE(a.back, a.before);
    // Recomputation is a use of its inputs.
    std::set<int> uses(tensor.uses.begin(), tensor.uses.end());
    for (const Eviction& b : plan.evictions) {
      const std::vector<int>& from = problem.tensors[b.tensor].from;
      if (b.recompute && std::count(from.begin(), from.end(), a.tensor) > 0) uses.insert(b.before);
    }
    for (int use : uses) EXPECT_TRUE(use <= a.after || use >= a.before);
    EXPECT_TRUE(uses.count(a.after) == 1 && uses.count(a.before) == 1);
    if (a.recompute) {
      EXPECT_GE(tensor.producer, 0);
      EXPECT_EQ(a.back, a.before);
      EXPECT_LT(a.before, tensor.inputs_valid_until);
      for (int t : tensor.from)
        EXPECT_TRUE(resident(t, a.before)) << "recomputed from an evicted tensor";
    } else {
      EXPECT_TRUE(tensor.can_swap);
      if (!a.copies_out) {
        bool earlier = false;
        for (const Eviction& b : plan.evictions) {
          earlier = earlier || (b.tensor == a.tensor && !b.recompute && b.after < a.after &&
                                b.after >= tensor.last_write);
        }
        EXPECT_TRUE(earlier) << "the host has no copy";
      }
      on_host.insert(a.tensor);
    }
  }
  int64_t peak = problem.fixed_bytes, host = 0;
  for (int k = 0; k < steps; ++k) {
    int64_t now = problem.fixed_bytes;
    for (size_t t = 0; t < problem.tensors.size(); ++t) {
      const std::vector<int>& uses = problem.tensors[t].uses;
      if (resident(static_cast<int>(t), k)) now += problem.tensors[t].bytes;
      if (std::binary_search(uses.begin(), uses.end(), k)) {
        EXPECT_TRUE(resident(static_cast<int>(t), k)) << "tensor " << t << " is away in step " << k;
      }
    }
    peak = std::max(peak, now);
  }
  for (int t : on_host) host += problem.tensors[t].bytes;
  EXPECT_EQ(host, plan.host_bytes);
  EXPECT_EQ(peak, plan.peak_bytes);
  EXPECT_EQ(plan.problem.empty(), peak <= problem.limit);
  return peak;
}

TEST(Offload, DoesNothingIfItFits) {
  OffloadProblem problem = Chain(8, 100, 1e-3);
  problem.limit = 100 * 10;
  const OffloadPlan plan = PlanOffload(problem, {});
  EXPECT_EQ(plan.problem, "");
  EXPECT_TRUE(plan.evictions.empty());
  EXPECT_DOUBLE_EQ(plan.seconds, 16e-3);
}

TEST(Offload, SwapsOverlapOnAFastHost) {
  OffloadProblem problem = Chain(50, 1 << 20, 1e-3);
  problem.limit = (1 << 20) * 12;
  OffloadSettings settings;
  settings.recompute = false;
  settings.host_bandwidth = 1e10;  // a tenth of a step for each tensor
  const OffloadPlan plan = PlanOffload(problem, settings);
  EXPECT_EQ(plan.problem, "");
  Replay(problem, plan);
  EXPECT_GE(plan.evictions.size(), 38u);
  EXPECT_NEAR(plan.seconds, 0.1, 1e-9);
}

TEST(Offload, RecomputesOnASlowHost) {
  OffloadProblem problem = Chain(40, 1 << 20, 1e-3);
  problem.limit = (1 << 20) * 32;
  OffloadSettings settings;
  settings.host_bandwidth = 1e8;  // ten steps for each tensor
  const OffloadPlan plan = PlanOffload(problem, settings);
  EXPECT_EQ(plan.problem, "");
  Replay(problem, plan);
  EXPECT_GT(std::count_if(plan.evictions.begin(), plan.evictions.end(),
                          [](const Eviction& a) { return a.recompute; }),
            4);
  settings.recompute = false;
  const OffloadPlan swapped = PlanOffload(problem, settings);
  Replay(problem, swapped);
  EXPECT_LT(plan.seconds, swapped.seconds);
}

TEST(Offload, ReportsWhatDoesNotFit) {
  OffloadProblem problem = Chain(10, 100, 1e-3);
  problem.fixed_bytes = 50;
  problem.limit = 50 + 399;  // a backward step works on four tensors
  const OffloadPlan plan = PlanOffload(problem, {});
  EXPECT_NE(plan.problem.find("450 bytes of 449"), std::string::npos) << plan.problem;
  EXPECT_EQ(Replay(problem, plan), 450);
  // Known without planning, naming the four.
  const OffloadPlan at_once = LargestStep(problem);
  EXPECT_NE(at_once.problem.find("450 bytes of 449"), std::string::npos) << at_once.problem;
  EXPECT_EQ(at_once.resident.size(), 4u);
  problem.limit += 1;
  EXPECT_EQ(PlanOffload(problem, {}).problem, "");
  EXPECT_EQ(LargestStep(problem).problem, "");
}

TEST(Offload, FollowsTheSettings) {
  OffloadProblem problem = Chain(30, 1 << 20, 1e-3);
  problem.limit = (1 << 20) * 12;
  OffloadSettings settings;
  settings.recompute = false;
  settings.swapin_ahead = 3;
  for (const Eviction& a : PlanOffload(problem, settings).evictions) {
    EXPECT_TRUE(a.before - a.back == 3 || a.back == a.after + 1 || a.back > a.before - 3);
  }
  settings = {};
  settings.recompute = false;
  settings.swapout_threshold = 20;
  for (const Eviction& a : PlanOffload(problem, settings).evictions) {
    EXPECT_GT(a.before - a.after, 20);
  }
  settings = {};
  settings.wait_for_swapout = settings.wait_for_swapin = true;
  settings.recompute = false;
  settings.host_bandwidth = 1e10;
  const OffloadPlan waiting = PlanOffload(problem, settings);
  const double copy = settings.host_latency + (1 << 20) / 1e10;
  EXPECT_NEAR(waiting.seconds, 60e-3 + 2 * copy * waiting.evictions.size(), 1e-9);
  Replay(problem, waiting);
  settings = {};
  settings.recompute = false;
  settings.host_bytes = 5 << 20;
  const OffloadPlan bounded = PlanOffload(problem, settings);
  EXPECT_LE(bounded.host_bytes, 5 << 20);
  EXPECT_NE(bounded.problem, "");
  settings.host_bytes = 0;
  settings.swap = false;
  EXPECT_TRUE(PlanOffload(problem, settings).evictions.empty());
}

TEST(Offload, NeverRecomputesFromOverwrittenInputs) {
  OffloadProblem problem = Chain(20, 1 << 20, 1e-3);
  for (OffloadTensor& t : problem.tensors) t.inputs_valid_until = 0;
  problem.limit = (1 << 20) * 10;
  OffloadSettings settings;
  settings.host_bandwidth = 1e8;
  for (const Eviction& a : PlanOffload(problem, settings).evictions) EXPECT_FALSE(a.recompute);
}

TEST(Offload, RandomProgramsGetValidPlans) {
  std::mt19937 random(7);
  const auto draw = [&](int below) { return static_cast<int>(random() % below); };
  int solved = 0, refused = 0;
  for (int round = 0; round < 300; ++round) {
    OffloadProblem problem;
    const int steps = 5 + draw(60);
    for (int k = 0; k < steps; ++k) problem.seconds.push_back((1 + draw(100)) * 1e-5);
    const int count = 1 + draw(80);
    for (int t = 0; t < count; ++t) {
      OffloadTensor tensor;
      tensor.bytes = (1 + draw(50)) * 10000;
      std::set<int> uses;
      for (int i = 1 + draw(5); i > 0; --i) uses.insert(draw(steps));
      tensor.uses.assign(uses.begin(), uses.end());
      tensor.last_write = tensor.uses[draw(2) * draw(static_cast<int>(tensor.uses.size()))];
      tensor.can_swap = draw(4) > 0;
      if (draw(2) == 0 && tensor.last_write == tensor.uses.front()) {
        tensor.producer = tensor.uses.front();
        for (int s = 0; s < t; ++s) {
          const std::vector<int>& others = problem.tensors[s].uses;
          if (std::binary_search(others.begin(), others.end(), tensor.producer)) {
            tensor.from.push_back(s);
          }
        }
        if (draw(3) == 0) tensor.inputs_valid_until = draw(steps);
      }
      problem.tensors.push_back(tensor);
    }
    problem.fixed_bytes = draw(100000);
    problem.limit = std::numeric_limits<int64_t>::max();
    const int64_t all = PlanOffload(problem, {}).peak_bytes;
    problem.limit = all * (30 + draw(70)) / 100;
    OffloadSettings settings;
    settings.host_bandwidth = 1e8 * (1 + draw(100));
    settings.recompute = draw(3) > 0;
    if (draw(3) == 0) settings.swapin_ahead = draw(6);
    const OffloadPlan plan = PlanOffload(problem, settings);
    Replay(problem, plan);
    double alone = 0;
    for (double s : problem.seconds) alone += s;
    EXPECT_GE(plan.seconds, alone - 1e-12);
    (plan.problem.empty() ? solved : refused)++;
    const OffloadPlan again = PlanOffload(problem, settings);
    ASSERT_EQ(again.evictions.size(), plan.evictions.size());
    EXPECT_EQ(again.seconds, plan.seconds);
    if (testing::Test::HasFailure()) FAIL() << "round " << round;
  }
  EXPECT_GT(solved, 100);
  EXPECT_GT(refused, 10);
}

}  // namespace
}  // namespace espalier
