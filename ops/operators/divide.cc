#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterDivide(OpRegistry& registry) {
  registry.Add(MakeBinary(
      {.name = "divide", .doc = "y = a / b, with numpy's broadcasting", .saves_inputs = true}));
}

}  // namespace espalier
