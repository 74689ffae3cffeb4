// Unity's joint search over rewrites of the graph and placements of its operators (Unger et al.,
// "Unity: accelerating DNN training through joint optimization of algebraic transformations and
// parallelization", OSDI 2022).
//
// The graph is cut into segments (segments.h). For each that is different a best-first search tries
// graphs: from the cheapest one on, every rule at every place; a graph is given up that costs more
// than alpha times the best one, whatever lies around it. What a graph costs is the table of
// elimination.h: its least serial step for each layout of what enters and leaves it. Along the
// sequence of segments dynamic programming over these layouts then chooses one graph for each.
// Where Unity keeps one graph for all boundaries, all are kept that are best for some.
//
// Groups of more devices than kGroup share operators much as kGroup of them would: that many are
// searched for, the first ones.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/rewrite/rule.h"
#include "planner/planner.h"
#include "planner/search/search_space.h"

namespace espalier {

struct JointOptions {
  int budget = 0;        // graphs that are tried for each different segment
  double alpha = 1.05;   // at least 1
  int least_nodes = 10;  // of a segment
  SpaceOptions space;    // num_devices of the machine
  std::function<void(double fraction)> progress;  // optional
  // Optional: asked every few graphs; once it is true, what is best so far is taken.
  std::function<bool()> stop;
};

struct JointResult {
  Graph graph;
  std::vector<v1::Rewrite> rewrites;  // that lead to it, in order
  int segments = 0;
  int different = 0;   // of them
  int64_t graphs = 0;  // tried
  double before = 0;   // seconds of a serial step, of a group
  double after = 0;    // likewise
};

// How many devices segments are searched for, at most.
constexpr int kJointGroup = 8;

// Depends on the arguments alone; `problem` must have a cost model. Graphs are looked at side by
// side, as far as problem.for_each does it. Errors as BuildStructure.
absl::StatusOr<JointResult> FindRewrites(const PlanProblem& problem,
                                         const std::vector<RewriteRule>& rules,
                                         const JointOptions& options);

}  // namespace espalier
