#include <utility>
#include <vector>

#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterPrelu(OpRegistry& registry) {
  OpDef def = MakeBinary({.name = "prelu",
                          .doc = "y = x where x > 0, else slope * x; slope is broadcast to x",
                          .flops = 2,
                          .saves_inputs = true,
                          .onnx = OnnxForm{"PRelu", {}}});
  def.inputs = {{"x"}, {"slope"}};
  def.infer = [](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const TensorType &x = types.inputs[0], &slope = types.inputs[1];
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType({"prelu", "slope", slope}, {"prelu", "x", x}));
    absl::StatusOr<Dims> dims = BroadcastDims("prelu", x.dims, slope.dims);
    if (!dims.ok()) return dims.status();
    if (*dims != x.dims) {
      return OpError("prelu", "input 'slope' has shape " + ToString(slope.dims) +
                                  ", expected one that is broadcast to " + ToString(x.dims) +
                                  ", the shape of 'x'");
    }
    return std::vector<TensorType>{x};
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
