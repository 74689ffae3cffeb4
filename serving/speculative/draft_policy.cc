#include "serving/speculative/draft_policy.h"

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

constexpr double kWorse = 0.7;  // times the chances of the others

// Rows of each SSM run that drafts the first nodes of a list for one request: the root, then at
// every level the nodes that have children.
class LevelRows {
 public:
  explicit LevelRows(size_t nodes) : has_children_(nodes, false) {}

  void Add(const AcceptanceEstimator::Node& node) {
    if (static_cast<int>(rows_.size()) < node.depth) rows_.resize(node.depth, 0);
    if (node.parent < 0) {
      rows_[0] = 1;
    } else if (!has_children_[node.parent]) {
      has_children_[node.parent] = true;
      ++rows_[node.depth - 1];
    }
  }
  absl::Span<const int> rows() const { return rows_; }
  int depth() const { return static_cast<int>(rows_.size()); }

 private:
  std::vector<bool> has_children_;
  std::vector<int> rows_;
};

// What a row of the trees costs in tokens that the time would yield otherwise, on average. (Not at
// the margin: a good choice ends before a stair, where the next row is dear and the last was free.)
double Price(const StepLoad& before, const StepLoad& with, const StepLatencyModel& llm,
             double rate) {
  const int rows = with.nodes - before.nodes;
  StepLoad tree = with;
  tree.drafting = before.drafting;
  return rate * (StepSeconds(tree, llm, with.nodes) - StepSeconds(before, llm, before.nodes)) /
         rows;
}

// What levels of the SSM take, for so many requests: asked again and again for the same few sizes.
class LevelTimes {
 public:
  LevelTimes(const StepLatencyModel& ssm, const StepLoad& load, const DraftBounds& bounds)
      : ssm_(ssm), load_(load), bounds_(bounds) {}

  // Of those that are asked from now on.
  void SetRequests(int requests) {
    if (requests == requests_) return;
    requests_ = requests;
    seconds_.clear();
  }
  double Of(int rows) {
    if (static_cast<int>(seconds_.size()) <= rows) seconds_.resize(rows + 1, -1);
    if (seconds_[rows] < 0) seconds_[rows] = Find(rows);
    return seconds_[rows];
  }
  double Find(double rows) const {
    return bounds_.overhead * ssm_.Seconds({.rows = static_cast<int>(std::ceil(rows)),
                                            .visible = rows * load_.context,
                                            .context = requests_ * load_.context});
  }

 private:
  const StepLatencyModel& ssm_;
  const StepLoad& load_;
  const DraftBounds& bounds_;
  int requests_ = 0;
  std::vector<double> seconds_;  // by rows; -1: not asked yet
};

}  // namespace

double StepSeconds(const StepLoad& load, const StepLatencyModel& llm, int nodes) {
  const int without = load.decoding + load.other_rows;
  const double rows =
      load.other_rows == 0
          ? llm.Seconds(without + nodes)
          : llm.Seconds(load.decoding) + llm.Seconds(without + nodes) - llm.Seconds(without);
  const double read = load.context * load.decoding;
  return rows + llm.PositionSeconds(read + load.context * nodes, read) + load.drafting;
}

double StepGoodput(const StepLoad& load, const StepLatencyModel& llm) {
  const double seconds = StepSeconds(load, llm, load.nodes);
  return seconds > 0 ? (load.decoding + load.gain) / seconds : 0;
}

DraftChoice ChooseDraft(const StepLoad& load, const StepLatencyModel& llm,
                        const StepLatencyModel& ssm, const AcceptanceEstimator& acceptance,
                        absl::Span<const DraftCandidate> offers, const DraftBounds& bounds,
                        double margin) {
  DraftChoice best;
  best.rate = StepGoodput(load, llm);
  if (load.decoding == 0 || best.rate <= 0 || offers.empty()) return best;
  const int room = bounds.rows - load.decoding - load.other_rows - load.nodes;
  double needed = best.rate * (1 + margin);
  LevelTimes times(ssm, load, bounds);
  for (int depth = 1; depth <= bounds.depth; ++depth) {
    const std::vector<AcceptanceEstimator::Node> nodes =
        acceptance.BestNodes(depth, bounds.nodes, bounds.ranks);
    double factors = 0, prefill_tokens = 0;
    for (int m = 1; m <= static_cast<int>(offers.size()); ++m) {
      factors += offers[m - 1].factor;
      prefill_tokens += offers[m - 1].prefill_tokens;
      // Only where what is left out is clearly worse, or there is no room: which of many that are
      // alike are drafted for would change from step to step, and each change costs catching up.
      const int left = static_cast<int>(offers.size()) - m;
      if (left != 0 && offers[m].factor > kWorse * factors / m &&
          (m + left <= room || (m & (m - 1)) != 0)) {
        continue;
      }
      const double behind = prefill_tokens / bounds.horizon / m;  // rows per request and step
      times.SetRequests(m);
      const double first = times.Find(m * (1 + behind));  // the root
      double value = 0;
      LevelRows levels(nodes.size());
      for (int k = 1; k <= static_cast<int>(nodes.size()) && m * k <= room; ++k) {
        value += nodes[k - 1].value;
        levels.Add(nodes[k - 1]);
        if (k > 8 && k % 4 != 0 && k != static_cast<int>(nodes.size())) continue;
        if (levels.depth() < depth && k > depth) continue;  // a smaller depth's
        double drafting = first;
        for (int level = 1; level < levels.depth(); ++level) {
          drafting += times.Of(m * levels.rows()[level]);
        }
        StepLoad with = load;
        with.nodes += m * k;
        with.gain += value * factors;
        with.drafting += drafting;
        const double rate = StepGoodput(with, llm);
        if (rate <= needed) continue;
        needed = rate;
        best = {.requests = m,
                .depth = levels.depth(),
                .nodes = k,
                .rate = rate,
                .gain = value * factors,
                .seconds = drafting,
                .prefill_tokens = static_cast<int>(prefill_tokens),
                .price = std::min(Price(load, with, llm, rate), nodes[k - 1].value * factors / m)};
      }
    }
  }
  return best;
}

DraftValue::DraftValue(const StepLoad& load, const StepLatencyModel& llm, double rate)
    : load_(load), llm_(llm), rate_(rate) {
  load_.nodes = 0;
  load_.gain = load_.drafting = 0;
}

double DraftValue::Price(size_t nodes) {
  for (size_t n = price_.size(); n <= nodes; ++n) {
    price_.push_back(rate_ *
                     (StepSeconds(load_, llm_, static_cast<int>(n)) - StepSeconds(load_, llm_, 0)));
  }
  return price_[nodes];
}

DraftValue::Best DraftValue::Of(absl::Span<const double> chances) {
  Best best;
  double gain = 0;
  for (size_t n = 1; n <= chances.size(); ++n) {
    gain += chances[n - 1];
    if (const double tokens = gain - Price(n); tokens > best.tokens) {
      best = {static_cast<int>(n), tokens};
    }
  }
  return best;
}

int ChooseNodes(const StepLoad& load, const StepLatencyModel& llm, absl::Span<const double> chances,
                int most) {
  double gain = 0, best_rate = 0;
  int best = 0;
  most = std::min(most, static_cast<int>(chances.size()));
  for (int n = 0; n <= most; ++n) {
    if (n > 0) gain += chances[n - 1];
    const double seconds = StepSeconds(load, llm, n);
    const double rate = seconds > 0 ? (load.decoding + gain) / seconds : 0;
    if (rate <= best_rate && n > 0) continue;
    best_rate = rate;
    best = n;
  }
  return best;
}

}  // namespace espalier
