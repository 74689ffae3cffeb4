#include "ops/operators/select.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterArgMax(OpRegistry& registry) {
  OpDef def =
      MakeArgExtreme("arg_max", "the place of the largest element along axis; NaN is largest");
  def.onnx = OnnxForm{
      "ArgMax", {{"axis", "axis"}, {"keepdims", "keepdims"}, {"select_last", "select_last_index"}}};
  registry.Add(std::move(def));
}

}  // namespace espalier
