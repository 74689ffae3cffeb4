#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterAdd(OpRegistry& registry) {
  registry.Add(MakeBinary({.name = "add",
                           .doc = "y = a + b, with numpy's broadcasting; integers wrap",
                           .types = ElementTypes("FIS"),
                           .onnx = OnnxForm{"Add", {}}}));
}

}  // namespace espalier
