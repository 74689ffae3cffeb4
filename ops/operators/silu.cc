#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterSilu(OpRegistry& registry) {
  registry.Add(MakeUnary(
      {.name = "silu", .doc = "y = x * sigmoid(x)", .flops = 15, .saves = Saves::kInput}));
}

}  // namespace espalier
