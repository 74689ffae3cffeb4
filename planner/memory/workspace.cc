#include "planner/memory/workspace.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace espalier {

int64_t KernelWorkspace(absl::string_view op, bool gradient, int64_t operands, int64_t weights) {
  int64_t bytes = operands / 2 * 3;
  if (gradient && absl::StartsWith(op, "conv")) bytes = std::max(bytes, operands + 2 * weights);
  return bytes;
}

}  // namespace espalier
