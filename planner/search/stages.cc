#include "planner/search/stages.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace espalier {
namespace {

constexpr int kMostCuts = 128;
constexpr double kNever = std::numeric_limits<double>::infinity();

// Sums of seconds up to each operator, by devices.
class Seconds {
 public:
  explicit Seconds(const StageProblem& problem)
      : problem_(problem), sums_(problem.devices * (problem.devices + 1)) {}

  double Of(const Stage& stage) {
    const std::vector<double>& sums = Sums(stage.first_device, stage.devices);
    double seconds = sums[stage.last] - sums[stage.first];
    if (stage.first > 0) seconds += problem_.transfer(stage.first);
    if (stage.last < problem_.operators) seconds += problem_.transfer(stage.last);
    return seconds;
  }

 private:
  const std::vector<double>& Sums(int first_device, int devices) {
    std::vector<double>& sums = sums_[first_device * (problem_.devices + 1) + devices];
    if (sums.empty()) {
      sums.push_back(0);
      for (int op = 0; op < problem_.operators; ++op) {
        sums.push_back(sums.back() + problem_.seconds(op, first_device, devices));
      }
    }
    return sums;
  }

  const StageProblem& problem_;
  std::vector<std::vector<double>> sums_;
};

// Where stages may begin and end, ascending, both ends of the sequence included.
std::vector<int> Cuts(const StageProblem& problem) {
  std::vector<int> cuts = {0};
  const int inner = problem.operators - 1;
  const int windows = std::min(inner, kMostCuts);
  for (int w = 0; w < windows; ++w) {
    const int begin = 1 + inner * w / windows, end = 1 + inner * (w + 1) / windows;
    int best = begin;
    for (int op = begin + 1; op < end; ++op) {
      if (problem.transfer(op) < problem.transfer(best)) best = op;
    }
    cuts.push_back(best);
  }
  cuts.push_back(problem.operators);
  return cuts;
}

}  // namespace

std::vector<Stage> SliceStages(const StageProblem& problem) {
  if (problem.stages < 1 || problem.operators < problem.stages ||
      problem.devices < problem.stages) {
    return {};
  }
  std::vector<int> counts = problem.counts;
  if (counts.empty()) {
    for (int c = 1; c <= problem.devices; ++c) counts.push_back(c);
  }
  const std::vector<int> cuts = Cuts(problem);
  const int ends = static_cast<int>(cuts.size());
  Seconds seconds(problem);

  // By stages, end and devices used: the slowest stage so far, and the last one.
  struct Best {
    double slowest = kNever;
    Stage last;
    int cut = -1;  // where it begins
  };
  std::vector<std::vector<std::vector<Best>>> best(
      problem.stages + 1,
      std::vector<std::vector<Best>>(ends, std::vector<Best>(problem.devices + 1)));
  best[0][0][0].slowest = 0;
  for (int k = 1; k <= problem.stages; ++k) {
    for (int end = 1; end < ends; ++end) {
      for (int begin = 0; begin < end; ++begin) {
        for (int used = 0; used < problem.devices; ++used) {
          const Best& before = best[k - 1][begin][used];
          if (before.slowest == kNever) continue;
          for (int count : counts) {
            if (count < 1 || used + count > problem.devices) continue;
            const Stage stage{cuts[begin], cuts[end], used, count};
            const double slowest = std::max(before.slowest, seconds.Of(stage));
            Best& after = best[k][end][used + count];
            if (slowest < after.slowest) after = {slowest, stage, begin};
          }
        }
      }
    }
  }
  std::vector<Stage> stages;
  int end = ends - 1, used = problem.devices;
  for (int k = problem.stages; k > 0; --k) {
    const Best& last = best[k][end][used];
    if (last.cut < 0) return {};
    stages.push_back(last.last);
    end = last.cut;
    used -= last.last.devices;
  }
  std::reverse(stages.begin(), stages.end());
  return stages;
}

double SlowestStage(const StageProblem& problem, const std::vector<Stage>& stages) {
  Seconds seconds(problem);
  double slowest = 0;
  for (const Stage& stage : stages) slowest = std::max(slowest, seconds.Of(stage));
  return slowest;
}

}  // namespace espalier
