#include <utility>

#include "ops/operators/expect.h"
#include "ops/operators/pooling.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterMaxPoolIndices(OpRegistry& registry) {
  OpDef def;
  def.name = "max_pool_indices";
  def.doc =
      "x[N, C, H, W] -> maxima over windows, and where in the whole x each lies (i64): the plane's "
      "first element plus h * W + w, or h + w * H";
  def.inputs = {{"x"}};
  def.types = {DType::kF32, DType::kBF16, DType::kF16};
  def.num_outputs = 2;
  def.attributes = WindowAttributes();
  def.attributes.push_back({"column_major", AttributeKind::kBool, false, false,
                            "indices count down the columns of a plane"});
  def.infer = [](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    absl::StatusOr<Dims> size = WindowedSize("max_pool_indices", types);
    if (!size.ok()) return size.status();
    const TensorType& x = types.inputs[0];
    const Dims y = {x.dims[0], x.dims[1], (*size)[0], (*size)[1]};
    return std::vector<TensorType>{{x.dtype, y}, {DType::kI64, y}};
  };
  def.split = SplitPlanes;
  def.cost = WindowCost;
  def.gradient = Gradient{.needs_inputs = {}, .needs_outputs = {1}, .differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
