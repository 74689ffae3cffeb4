#include "serving/speculative/draft_policy.h"

#include <algorithm>
#include <iterator>

namespace espalier {
namespace {

constexpr int kSizes[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

}  // namespace

double StepSeconds(const StepLoad& load, const StepLatency& llm, int nodes) {
  const int without = load.decoding + load.other_rows;
  if (load.other_rows == 0) return llm.Seconds(without + nodes) + load.drafting;
  return llm.Seconds(load.decoding) + llm.Seconds(without + nodes) - llm.Seconds(without) +
         load.drafting;
}

double Goodput(const StepLoad& load, const StepLatency& llm) {
  const double seconds = StepSeconds(load, llm, load.nodes);
  return seconds > 0 ? (load.decoding + load.gain) / seconds : 0;
}

DraftShapes::DraftShapes(const AcceptanceEstimator& acceptance, int depth, int nodes, int ranks) {
  for (int levels = std::min(depth, 1), below = 0; levels > below;
       below = levels, levels = std::min(2 * levels, depth)) {
    const std::vector<AcceptanceEstimator::Node> best = acceptance.BestNodes(levels, nodes, ranks);
    Shape shape{.rows = {1}};
    std::vector<bool> has_children(best.size(), false);
    for (size_t i = 0; i < best.size(); ++i) {
      const AcceptanceEstimator::Node& node = best[i];
      ++shape.nodes;
      shape.gain += node.value;
      if (static_cast<int>(shape.rows.size()) < node.depth) shape.rows.resize(node.depth, 0);
      if (node.parent >= 0 && !has_children[node.parent]) {
        has_children[node.parent] = true;
        ++shape.rows[node.depth - 1];
      }
      const bool offered =
          i + 1 == best.size() || std::count(std::begin(kSizes), std::end(kSizes), shape.nodes) > 0;
      // Shapes that are no deeper than the depth before are there already.
      if (offered && static_cast<int>(shape.rows.size()) > below) shapes_.push_back(shape);
    }
  }
}

DraftTier ChooseDraftTier(const StepLoad& load, const DraftCosts& costs, const DraftShapes& shapes,
                          absl::Span<const DraftGroup> groups, double least_gain) {
  DraftTier best{.rate = Goodput(load, costs.llm)};
  if (load.decoding == 0 || best.rate <= 0) return best;
  const int room = costs.max_rows - load.decoding - load.other_rows - load.nodes;
  const double before = StepSeconds(load, costs.llm, load.nodes);
  double needed = best.rate * least_gain;
  for (const DraftGroup& group : groups) {
    for (const DraftShapes::Shape& shape : shapes.shapes()) {
      const int rows = group.requests * shape.nodes;
      if (rows == 0 || rows > room) continue;
      double drafting = costs.ssm.Seconds(group.requests + group.prefill_rows);
      for (size_t level = 1; level < shape.rows.size(); ++level) {
        drafting += costs.ssm.Seconds(group.requests * shape.rows[level]);
      }
      drafting *= costs.overhead;
      const double gain = shape.gain * group.acceptance;
      const double seconds = StepSeconds(load, costs.llm, load.nodes + rows);
      const double rate = (load.decoding + load.gain + gain) / (seconds + drafting);
      if (rate <= needed) continue;
      needed = rate;
      best = {.requests = group.requests,
              .nodes = shape.nodes,
              .rate = rate,
              .gain = gain,
              .seconds = drafting,
              .price = rate * (seconds - before) / rows};
    }
  }
  return best;
}

int ChooseNodes(const StepLoad& load, const StepLatency& llm, absl::Span<const double> chances,
                double rate) {
  const double without = StepSeconds(load, llm, 0);
  if (without <= 0) return 0;
  double gain = 0, best_value = rate > 0 ? 0 : load.decoding / without;
  int best = 0;
  for (int n = 1; n <= static_cast<int>(chances.size()); ++n) {
    gain += chances[n - 1];
    const double seconds = StepSeconds(load, llm, n);
    const double value =
        rate > 0 ? gain - rate * (seconds - without) : (load.decoding + gain) / seconds;
    if (value <= best_value) continue;
    best_value = value;
    best = n;
  }
  return best;
}

}  // namespace espalier
