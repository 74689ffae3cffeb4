// Unity's joint search over rewrites of the graph and placements of its operators (Unger et al.,
// "Unity: accelerating DNN training through joint optimization of algebraic transformations and
// parallelization", OSDI 2022).
//
// The graph is cut into segments (segments.h). For each distinct segment a best-first search tries
// every rule at every place, starting from the cheapest graph; it drops graphs that cost more than
// alpha times the best one for all boundary layouts. The cost of a graph is the table of
// elimination.h: its least serial step for each layout at its input and output. Dynamic programming
// over these layouts along the sequence of segments then chooses one graph for each. Unity keeps
// one graph for all boundary layouts; this search keeps every graph that is best for some.
//
// Groups of more than kJointGroup devices share operators much like kJointGroup devices, so the
// search uses the first kJointGroup devices only.
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
  int budget = 0;                                 // graphs tried per distinct segment
  double alpha = 1.05;                            // at least 1
  int least_nodes = 10;                           // per segment
  SpaceOptions space;                             // num_devices of the machine
  std::function<void(double fraction)> progress;  // optional
  // Optional: polled every few graphs. Once true, the search returns the best so far.
  std::function<bool()> stop;
};

struct JointResult {
  Graph graph;
  std::vector<v1::Rewrite> rewrites;  // that lead to `graph`, in order
  int segments = 0;
  int different = 0;   // distinct segments
  int64_t graphs = 0;  // tried
  double before = 0;   // seconds of a serial step of the original graph on one group
  double after = 0;    // seconds of a serial step of `graph` on one group
};

// The most devices that the segment search considers.
constexpr int kJointGroup = 8;

// Deterministic. REQUIRES: `problem` has a cost model. Evaluates graphs in parallel through
// problem.for_each. Errors as BuildStructure.
absl::StatusOr<JointResult> FindRewrites(const PlanProblem& problem,
                                         const std::vector<RewriteRule>& rules,
                                         const JointOptions& options);

}  // namespace espalier
