#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/operators/pooling.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferAdaptivePool2d(const NodeTypes& types) {
  const InputRef x{"adaptive_pool2d", "x", types.inputs[0]};
  const std::string kind = types.attributes.String("kind");
  const std::vector<int64_t> size = types.attributes.Ints("size");
  if (kind != "max" && kind != "average") {
    return AttributeError("adaptive_pool2d", "kind", absl::StrCat("'", kind, "'"),
                          "'max' or 'average'");
  }
  ESPALIER_RETURN_IF_ERROR(ExpectInts("adaptive_pool2d", "size", size, 2, 1));
  ESPALIER_RETURN_IF_ERROR(ExpectRank(x, 4));
  const Dims& dims = x.type.dims;
  if (dims[2] == 0 || dims[3] == 0) {
    return OpError("adaptive_pool2d", absl::StrCat("input 'x' has shape ", ToString(dims),
                                                   ", expected images that are not empty"));
  }
  return std::vector<TensorType>{{x.type.dtype, {dims[0], dims[1], size[0], size[1]}}};
}

}  // namespace

void RegisterAdaptivePool2d(OpRegistry& registry) {
  OpDef def;
  def.name = "adaptive_pool2d";
  def.doc =
      "x[N, C, H, W] -> [N, C, size]: maximum or average over rows floor(i H / H') to "
      "ceil((i + 1) H / H') - 1, columns alike";
  def.inputs = {{"x"}};
  def.types = {DType::kF32, DType::kBF16, DType::kF16};
  def.attributes = {{"kind", AttributeKind::kString, std::nullopt, true, "'max' or 'average'"},
                    {"size", AttributeKind::kInts, std::nullopt, true, "height, width"}};
  def.infer = InferAdaptivePool2d;
  def.split = SplitPlanes;
  def.cost = [](const NodeTypes& types) {
    return Cost{static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0}, .needs_outputs = {}, .differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
