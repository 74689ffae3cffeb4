#include "ops/operators/select.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterArgMin(OpRegistry& registry) {
  OpDef def =
      MakeArgExtreme("arg_min", "the place of the smallest element along axis; NaN is smallest");
  def.onnx = OnnxForm{
      "ArgMin", {{"axis", "axis"}, {"keepdims", "keepdims"}, {"select_last", "select_last_index"}}};
  registry.Add(std::move(def));
}

}  // namespace espalier
