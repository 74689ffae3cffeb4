#include "ops/cpu/binary.h"

namespace espalier {

void RegisterCompareCpu(KernelRegistry& registry) {
  AddBinary<Takes::kAll>(registry, "equal", [](auto a, auto b) { return a == b; });
  AddBinary<Takes::kAll>(registry, "not_equal", [](auto a, auto b) { return a != b; });
  AddBinary<Takes::kNumbers>(registry, "less", [](auto a, auto b) { return a < b; });
  AddBinary<Takes::kNumbers>(registry, "less_equal", [](auto a, auto b) { return a <= b; });
  AddBinary<Takes::kNumbers>(registry, "greater", [](auto a, auto b) { return a > b; });
  AddBinary<Takes::kNumbers>(registry, "greater_equal", [](auto a, auto b) { return a >= b; });
}

}  // namespace espalier
