#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterIdentity(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "identity",
                          .doc = "y = x",
                          .flops = 0,
                          .saves = Saves::kNothing,
                          .any_type = true}));
}

}  // namespace espalier
