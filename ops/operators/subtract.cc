#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterSubtract(OpRegistry& registry) {
  registry.Add(MakeBinary({.name = "subtract",
                           .doc = "y = a - b, with numpy's broadcasting; integers wrap",
                           .types = ElementTypes("FIS"),
                           .onnx = OnnxForm{"Sub", {}}}));
}

}  // namespace espalier
