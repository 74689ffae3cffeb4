#include "absl/strings/str_cat.h"
#include "ops/operators/depth_space.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterDepthToSpace(OpRegistry& registry) {
  OpDef def = MakeDepthSpace("depth_to_space",
                             "y[n, c, h * b + i, w * b + j] = x[n, k, h, w] with k = (i * b + j) * "
                             "(C / b^2) + c for mode DCR, k = c * b^2 + i * b + j for CRD",
                             /*to_space=*/true);
  def.attributes.push_back({.name = "mode",
                            .kind = AttributeKind::kString,
                            .default_value = "DCR",
                            .doc = "'DCR' or 'CRD' (PyTorch's pixel_shuffle)"});
  def.infer = [infer =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const std::string mode = types.attributes.String("mode");
    if (mode != "DCR" && mode != "CRD") {
      return AttributeError("depth_to_space", "mode", absl::StrCat("'", mode, "'"),
                            "'DCR' or 'CRD'");
    }
    return infer(types);
  };
  def.onnx = OnnxForm{"DepthToSpace", {{"blocksize", "blocksize"}, {"mode", "mode"}}};
  registry.Add(std::move(def));
}

}  // namespace espalier
