// A graph cut where all that is trained passes through one place: the recursion of Unity (Unger et
// al., OSDI 2022) at post-dominators, so that each part is searched alone and parts that are alike
// are searched once.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"

namespace espalier {

// Consecutive nodes, and the values that cross its two ends: of the same type, results of what
// depends on trained parameters; none at the ends of the graph.
struct Segment {
  NodeId first = 0, last = 0;  // [first, last)
  std::vector<ValueId> in, out;
};

// Segments of at least `least` nodes, together all of the bound `graph`. `crossed`, by node:
// whether something would be torn by a cut in front of it; such cuts are made only where segments
// would otherwise get more than four times as long.
std::vector<Segment> CutIntoSegments(const Graph& graph, const std::vector<bool>& crossed,
                                     int least);

// A segment as a graph of its own that can be trained.
struct SegmentGraph {
  Graph graph;  // bound; nodes and values of the segment have their names
  // Names of nodes, which rewrites leave alone: those that stand for what is in front, in the order
  // of Segment::in, for what is behind, and others that only make a loss of it.
  std::vector<std::string> in, out, rest;
};

// Errors as BindAndInfer.
absl::StatusOr<SegmentGraph> MakeSegmentGraph(const OpRegistry& registry, const Graph& graph,
                                              const Segment& segment, int64_t batch);

// Equal for graphs that differ in names alone, nodes in the same order.
std::string CanonicalForm(const Graph& graph);

}  // namespace espalier
