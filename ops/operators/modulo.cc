#include <utility>

#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterModulo(OpRegistry& registry) {
  OpDef def = MakeBinary({.name = "modulo",
                          .doc = "y = a - q * b, with numpy's broadcasting; q = a / b rounded down "
                                 "(fmod: towards zero), whose gradient is zero",
                          .flops = 10,
                          .saves_inputs = true,
                          .types = ElementTypes("FIS"),
                          .onnx = OnnxForm{"Mod", {{"fmod", "fmod"}}}});
  def.attributes = {{.name = "fmod",
                     .kind = AttributeKind::kBool,
                     .default_value = false,
                     .doc = "y has the sign of a, as in C; otherwise that of b, as in Python"}};
  registry.Add(std::move(def));
}

}  // namespace espalier
