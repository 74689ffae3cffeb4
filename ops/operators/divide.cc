#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterDivide(OpRegistry& registry) {
  registry.Add(
      MakeBinary({.name = "divide",
                  .doc = "y = a / b, with numpy's broadcasting; integers truncate towards zero",
                  .saves_inputs = true,
                  .types = ElementTypes("FIS"),
                  .onnx = OnnxForm{"Div", {}}}));
}

}  // namespace espalier
