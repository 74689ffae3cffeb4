// Workspace of the kernels that a program runs.
#pragma once

#include <cstdint>

#include "planner/lowering/rank_program.h"
#include "planner/planner.h"

namespace espalier {

struct ProgramWorkspace {
  int64_t bytes = 0;  // of the kernel that needs most
  // False: `query` is empty or has no answer for one of the kernels; `bytes` is then an estimate
  // (planner/memory/workspace.h) that may be far too large.
  bool known = false;
};

ProgramWorkspace WorkspaceOf(const OpRegistry& registry, const RankProgram& program,
                             const WorkspaceQuery& query, const v1::Device& device);

}  // namespace espalier
