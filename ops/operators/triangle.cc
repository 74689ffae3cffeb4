#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {

// Kernels know the position of a shard in the whole matrix, so every dimension can be split.
void RegisterTriangle(OpRegistry& registry) {
  OpDef def;
  def.name = "triangle";
  def.doc = "y[..., i, j] = x[..., i, j] where j - i <= k (upper: j - i >= k), otherwise 0";
  def.inputs = {{"x"}};
  def.attributes = {{.name = "upper",
                     .kind = AttributeKind::kBool,
                     .default_value = false,
                     .doc = "keep what lies above the diagonal, otherwise what lies below it"},
                    {.name = "k",
                     .kind = AttributeKind::kInt,
                     .default_value = int64_t{0},
                     .doc = "which diagonal; 0 is the main one, 1 the one above it"}};
  def.types = ElementTypes("FISB");
  def.infer = [](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast({"triangle", "x", types.inputs[0]}, 2));
    return std::vector<TensorType>{types.inputs[0]};
  };
  def.split = SplitAlike;
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
