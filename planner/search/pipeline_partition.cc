#include "planner/search/pipeline_partition.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>

namespace espalier {
namespace {

constexpr int kMostCuts = 128;
constexpr double kNever = std::numeric_limits<double>::infinity();

// Prefix sums of seconds over operators, by the first device and `counts` of them.
class Seconds {
 public:
  Seconds(const PipelinePartitionProblem& problem, const std::vector<int>& counts)
      : problem_(problem),
        transfers_(problem.operators + 1, 0),
        counts_(counts.size()),
        index_of_(problem.devices + 1, 0),
        sums_(counts.size() * (problem.alike ? 1 : problem.devices)) {
    for (int op = 1; op < problem.operators; ++op) transfers_[op] = problem.transfer(op);
    for (size_t i = 0; i < counts.size(); ++i) index_of_[counts[i]] = i;
  }

  double Of(const PipelineStage& stage) {
    const std::vector<double>& sums = Sums(stage.first_device, stage.devices);
    return sums[stage.last] - sums[stage.first] + transfers_[stage.first] + transfers_[stage.last];
  }

 private:
  const std::vector<double>& Sums(int first_device, int devices) {
    const size_t first = problem_.alike ? 0 : static_cast<size_t>(first_device);
    std::vector<double>& sums = sums_[first * counts_ + index_of_[devices]];
    if (sums.empty()) {
      sums.push_back(0);
      for (int op = 0; op < problem_.operators; ++op) {
        sums.push_back(sums.back() + problem_.seconds(op, first_device, devices));
      }
    }
    return sums;
  }

  const PipelinePartitionProblem& problem_;
  std::vector<double> transfers_;  // by operator after the cut
  const size_t counts_;
  std::vector<size_t> index_of_;  // by number of devices: index in `counts`
  std::vector<std::vector<double>> sums_;
};

// Positions where stages may begin and end, ascending, including both ends of the sequence.
std::vector<int> Cuts(const PipelinePartitionProblem& problem) {
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

std::vector<PipelineStage> PartitionPipeline(const PipelinePartitionProblem& problem) {
  if (problem.stages < 1 || problem.operators < problem.stages ||
      problem.devices < problem.stages) {
    return {};
  }
  std::vector<int> counts;
  for (int c = 1; c <= problem.devices; ++c) {
    const std::vector<int>& all = problem.counts;
    if (all.empty() || std::find(all.begin(), all.end(), c) != all.end()) counts.push_back(c);
  }
  if (counts.empty()) return {};
  const int least = counts.front(), most = counts.back();
  const std::vector<int> cuts = Cuts(problem);
  const int ends = static_cast<int>(cuts.size());
  Seconds seconds(problem, counts);

  // By stages, end and devices used, from the fewest devices possible: the slowest stage so far,
  // and the last stage.
  struct Best {
    double slowest = kNever;
    PipelineStage last;
    int cut = -1;  // start of the last stage
  };
  const auto fewest = [&](int stages) { return std::min(stages * least, problem.devices); };
  std::vector<std::vector<std::vector<Best>>> best(problem.stages + 1);
  for (int k = 0; k <= problem.stages; ++k) {
    const int sizes = std::min<int64_t>(int64_t{k} * most, problem.devices) - fewest(k) + 1;
    best[k].assign(ends, std::vector<Best>(sizes));
  }
  best[0][0][0].slowest = 0;
  for (int k = 1; k <= problem.stages; ++k) {
    for (int end = 1; end < ends; ++end) {
      if (problem.stop && problem.stop()) return {};
      for (int begin = 0; begin < end; ++begin) {
        for (size_t more = 0; more < best[k - 1][begin].size(); ++more) {
          const Best& before = best[k - 1][begin][more];
          if (before.slowest == kNever) continue;
          const int used = fewest(k - 1) + static_cast<int>(more);
          for (int count : counts) {
            if (used + count > problem.devices) break;
            const PipelineStage stage{cuts[begin], cuts[end], used, count};
            const double slowest = std::max(before.slowest, seconds.Of(stage));
            Best& after = best[k][end][used + count - fewest(k)];
            if (slowest < after.slowest) after = {slowest, stage, begin};
          }
        }
      }
    }
  }
  std::vector<PipelineStage> stages;
  int end = ends - 1, used = problem.devices;
  for (int k = problem.stages; k > 0; --k) {
    const int more = used - fewest(k);
    if (more < 0 || more >= static_cast<int>(best[k][end].size())) return {};
    const Best& last = best[k][end][more];
    if (last.cut < 0) return {};
    stages.push_back(last.last);
    end = last.cut;
    used -= last.last.devices;
  }
  std::reverse(stages.begin(), stages.end());
  return stages;
}

double SlowestPipelineStage(const PipelinePartitionProblem& problem,
                            const std::vector<PipelineStage>& stages) {
  std::set<int> counts;
  for (const PipelineStage& stage : stages) counts.insert(stage.devices);
  Seconds seconds(problem, {counts.begin(), counts.end()});
  double slowest = 0;
  for (const PipelineStage& stage : stages) slowest = std::max(slowest, seconds.Of(stage));
  return slowest;
}

}  // namespace espalier
