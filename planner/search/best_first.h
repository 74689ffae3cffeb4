// The best-first search over the graphs that rewrites make of one segment.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/search/joint_search.h"
#include "planner/search/segments.h"

namespace espalier {

// One application of a rule, to a graph that is known.
struct RewriteStep {
  int rule = 0;
  std::vector<NodeId> nodes;  // as Match::nodes
};

// A graph of a segment that is best for some layout of what enters and leaves it.
struct Variant {
  std::vector<RewriteStep> steps;  // from the segment as it was
  // Picoseconds, for each layout of what enters (if anything does), outermost, and leaves.
  std::vector<double> costs;
};

struct Variants {
  std::vector<Variant> variants;  // the segment as it was first
  int entries = 1, exits = 1;     // layouts
  int64_t graphs = 0;             // tried
};

absl::StatusOr<Variants> SearchSegment(const PlanProblem& problem,
                                       const std::vector<RewriteRule>& rules,
                                       const JointOptions& options, const SegmentGraph& segment);

// The graph after `step`. InvalidArgument if it does not fit.
absl::StatusOr<Graph> ApplyStep(const OpRegistry& registry, const std::vector<RewriteRule>& rules,
                                const RewriteStep& step, const Graph& graph);

}  // namespace espalier
