// Lowers a plan to the programs of a session (docs/guide/sessions.md).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "planner/planner.h"

namespace espalier {

// Numbers of instructions of a training program, ascending: the forward pass ends at `forward_end`;
// the backward pass, with the synchronization of gradients, at `backward_end`. Up to `store_end`
// the gradients are copied into buffers that stay, the sums, up to `accumulate_end` added to them:
// a pass runs one of the two. The update follows.
struct PassBorders {
  int forward_end = 0;
  int backward_end = 0;
  int store_end = 0;
  int accumulate_end = 0;
};

struct LoweredSession {
  LoweredPlan programs;
  std::vector<PassBorders> borders;  // of the training programs, by rank
};

// As LowerPlan, with training programs whose passes can run one by one. Gradients are buffers of
// kind OPTIMIZER_STATE, "<parameter>.grad". Of a graph with kResultsMetadata (pcg/structure.h),
// Program.outputs holds the parts of each result that this rank keeps: "<name>", "<name>#2", ...
absl::StatusOr<LoweredSession> LowerSession(const OpRegistry& registry, const Graph& graph,
                                            const v1::Plan& plan, const LoweringOptions& options);

}  // namespace espalier
