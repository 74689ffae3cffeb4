// What kernels need beside the arena, which is known to the worker alone: what a plan keeps free
// for it.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace espalier {

// Bytes for one run of an operator whose products are a library's (those that mixed precision
// narrows): they bring their operands into other orders, with padding, for which there is room for
// half as much again as all operands, results among them, take. The gradient of a convolution's
// weights is summed up in a copy by each thread besides; where images are small and weights large
// these are most of it (oneDNN's kernels for AVX2, two threads).
// `op`: of the forward operator. `gradient`: it is the backward part that runs. `weights`: bytes
// of its second operand.
int64_t KernelWorkspace(absl::string_view op, bool gradient, int64_t operands, int64_t weights);

}  // namespace espalier
