#include <utility>
#include <vector>

#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterSwiglu(OpRegistry& registry) {
  OpDef def = MakeBinary({.name = "swiglu",
                          .doc = "y = silu(gate) * up, of one shape",
                          .flops = 16,
                          .saves_inputs = true});
  def.inputs = {{"gate"}, {"up"}};
  def.infer = [](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(
        ExpectSameType({"swiglu", "up", types.inputs[1]}, {"swiglu", "gate", types.inputs[0]}));
    return std::vector<TensorType>{types.inputs[0]};
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
