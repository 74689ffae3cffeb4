#include "ops/cpu/binary.h"

namespace espalier {

void RegisterLogicalCpu(KernelRegistry& registry) {
  AddUnaryForward<Takes::kBools>(registry, "logical_not",
                                 [](const Attributes&) { return [](bool x) { return !x; }; });
  AddBinary<Takes::kBools>(registry, "logical_and", [](bool a, bool b) -> bool { return a & b; });
  AddBinary<Takes::kBools>(registry, "logical_or", [](bool a, bool b) -> bool { return a | b; });
  AddBinary<Takes::kBools>(registry, "logical_xor", [](bool a, bool b) { return a != b; });
}

}  // namespace espalier
