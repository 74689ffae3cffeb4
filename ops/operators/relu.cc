#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterRelu(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "relu",
                          .doc = "y = max(x, 0); NaN stays NaN",
                          .flops = 1,
                          .saves = Saves::kOutput}));
}

}  // namespace espalier
