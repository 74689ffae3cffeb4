#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterPower(OpRegistry& registry) {
  OpDef def = MakeBinary({.name = "power",
                          .doc = "y = a to the power of b, with numpy's broadcasting; of "
                                 "integers: wraps, and towards zero for negative b",
                          .flops = 40,
                          .saves_inputs = true,
                          .types = ElementTypes("FI"),
                          .onnx = OnnxForm{"Pow", {}}});
  def.precision = Precision::kF32;
  registry.Add(std::move(def));
}

}  // namespace espalier
