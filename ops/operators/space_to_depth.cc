#include "ops/operators/depth_space.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterSpaceToDepth(OpRegistry& registry) {
  OpDef def = MakeDepthSpace("space_to_depth",
                             "y[n, (i * b + j) * C + c, h, w] = x[n, c, h * b + i, w * b + j]",
                             /*to_space=*/false);
  def.onnx = OnnxForm{"SpaceToDepth", {{"blocksize", "blocksize"}}};
  registry.Add(std::move(def));
}

}  // namespace espalier
