// Cuts a graph where all trained data flow passes through one place: Unity's recursion at
// post-dominators (Unger et al., OSDI 2022). Each segment is searched alone, and equal segments
// once.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"

namespace espalier {

// Consecutive nodes, and the values that cross the two ends. The values of one end have the same
// type and depend on trained parameters; the ends of the graph have none.
struct Segment {
  NodeId first = 0, last = 0;  // [first, last)
  std::vector<ValueId> in, out;
};

// Returns segments of at least `least` nodes that together cover the bound `graph`. `crossed`, by
// node: a cut in front of the node would separate nodes that belong together; such cuts are made
// only where segments would otherwise be more than four times as long.
std::vector<Segment> CutIntoSegments(const Graph& graph, const std::vector<bool>& crossed,
                                     int least);

// A segment as a trainable graph of its own.
struct SegmentGraph {
  Graph graph;  // bound; nodes and values of the segment keep their names
  // Names of added nodes, which rewrites must not touch: producers of Segment::in in order,
  // consumers of Segment::out, and nodes that only make a loss of it.
  std::vector<std::string> in, out, rest;
};

// Errors as BindAndInfer.
absl::StatusOr<SegmentGraph> MakeSegmentGraph(const OpRegistry& registry, const Graph& graph,
                                              const Segment& segment, int64_t batch);

// A key that is equal for graphs that differ in names alone, with nodes in the same order.
std::string CanonicalForm(const Graph& graph);

}  // namespace espalier
