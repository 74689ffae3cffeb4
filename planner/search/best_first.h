// Best-first search over the graphs that rewrites make of one segment.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/search/joint_search.h"
#include "planner/search/segments.h"

namespace espalier {

// One application of a rule to a known graph.
struct RewriteStep {
  int rule = 0;
  std::vector<NodeId> nodes;  // as Match::nodes
};

// A rewritten segment that is the cheapest for some pair of boundary layouts.
struct Variant {
  std::vector<RewriteStep> steps;  // from the original segment
  // Picoseconds for each layout of the segment's input (if it has one; outermost) and output.
  std::vector<double> costs;
};

struct Variants {
  std::vector<Variant> variants;  // the original segment first
  int entries = 1, exits = 1;     // number of input and output layouts
  int64_t graphs = 0;             // graphs tried
};

absl::StatusOr<Variants> SearchSegment(const PlanProblem& problem,
                                       const std::vector<RewriteRule>& rules,
                                       const JointOptions& options, const SegmentGraph& segment);

// Returns the graph after `step`. Returns InvalidArgument if the rule does not match.
absl::StatusOr<Graph> ApplyStep(const OpRegistry& registry, const std::vector<RewriteRule>& rules,
                                const RewriteStep& step, const Graph& graph);

}  // namespace espalier
