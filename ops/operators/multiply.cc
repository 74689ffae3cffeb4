#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterMultiply(OpRegistry& registry) {
  registry.Add(MakeBinary({.name = "multiply",
                           .doc = "y = a * b, with numpy's broadcasting; integers wrap",
                           .saves_inputs = true,
                           .types = ElementTypes("FIS"),
                           .onnx = OnnxForm{"Mul", {}}}));
}

}  // namespace espalier
