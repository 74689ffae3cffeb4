// Workspace that a plan reserves for kernels where their own answer is not at hand: in a search,
// which asks thousands of times a second, and for devices whose kernels are not here
// (planner/lowering/program_workspace.h).
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace espalier {

// Returns the bytes for one run of an operator that calls a library's matrix product (those that
// mixed precision narrows). Such kernels reorder and pad their operands, which takes up to half as
// much again as all operands and results. For a convolution's weight gradient, each thread also
// sums into its own copy; with small images and large weights these copies dominate (oneDNN's AVX2
// kernels, two threads). `op`: the forward operator. `gradient`: its backward part runs. `weights`:
// bytes of its second operand.
int64_t KernelWorkspace(absl::string_view op, bool gradient, int64_t operands, int64_t weights);

}  // namespace espalier
