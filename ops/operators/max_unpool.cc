#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/operators/pooling.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferMaxUnpool(const NodeTypes& types) {
  const InputRef x{"max_unpool", "x", types.inputs[0]};
  const InputRef indices{"max_unpool", "indices", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectRank(x, 4));
  ESPALIER_RETURN_IF_ERROR(ExpectDType(indices, {DType::kI64}));
  const Dims& d = x.type.dims;
  ESPALIER_RETURN_IF_ERROR(
      ExpectShape(indices, {d[0], d[1], d[2], d[3]}, absl::StrCat("'x' is ", ToString(d))));
  const std::vector<int64_t> dims = types.attributes.Ints("dims");
  const bool whole =
      dims.size() == 4 && (dims[0] == 0 || dims[0] == d[0]) && (dims[1] == 0 || dims[1] == d[1]);
  if ((dims.size() != 2 && !whole) || dims[dims.size() - 2] < 1 || dims.back() < 1) {
    return AttributeError("max_unpool", "dims", ToString(dims),
                          absl::StrCat("height and width, behind ", d[0], " and ", d[1],
                                       " or zeros if there are four"));
  }
  return std::vector<TensorType>{{x.type.dtype, {d[0], d[1], dims[dims.size() - 2], dims.back()}}};
}

}  // namespace

void RegisterMaxUnpool(OpRegistry& registry) {
  OpDef def;
  def.name = "max_unpool";
  def.doc =
      "x[N, C, H, W], indices (as max_pool_indices gives them, row-major) -> [N, C, dims]: x at "
      "the "
      "indices, the rest 0; of equal indices the last one counts";
  def.inputs = {{"x"}, {"indices"}};
  def.types = {DType::kF32, DType::kBF16, DType::kF16};
  def.attributes = {{"dims", AttributeKind::kInts, std::nullopt, true,
                     "height, width; of four, the first two are those of x or 0"}};
  def.infer = InferMaxUnpool;
  def.split = SplitPlanes;
  def.gradient = Gradient{.needs_inputs = {1}, .needs_outputs = {}, .differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
