#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterMaximumMinimum(OpRegistry& registry) {
  registry.Add(MakeBinary({.name = "maximum",
                           .doc = "y = the larger of a and b, with numpy's broadcasting; NaN wins, "
                                  "a tie shares the gradient",
                           .saves_inputs = true,
                           .types = ElementTypes("FIS")}));
  registry.Add(MakeBinary({.name = "minimum",
                           .doc = "y = the smaller of a and b, with numpy's broadcasting; NaN "
                                  "wins, a tie shares the gradient",
                           .saves_inputs = true,
                           .types = ElementTypes("FIS")}));
}

}  // namespace espalier
