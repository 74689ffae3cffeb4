#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferClipScale(const NodeTypes& types) {
  const double max_norm = types.attributes.Float("max_norm");
  if (!(max_norm > 0)) {
    return AttributeError("clip_scale", "max_norm", absl::StrCat(max_norm), "a positive number");
  }
  for (size_t i = 0; i < types.inputs.size(); ++i) {
    const std::string name = absl::StrCat("sum", i);
    const InputRef sum{"clip_scale", name, types.inputs[i]};
    ESPALIER_RETURN_IF_ERROR(ExpectDType(sum, {DType::kF32}));
    ESPALIER_RETURN_IF_ERROR(ExpectRank(sum, 0));
  }
  return std::vector<TensorType>(2, TensorType{DType::kF32, {}});
}

}  // namespace

void RegisterClipScale(OpRegistry& registry) {
  OpDef def;
  def.name = "clip_scale";
  def.doc =
      "from sums of squares: norm = sqrt(their sum), scale = min(1, max_norm / (norm + 1e-6))";
  def.inputs = {{.name = "sum", .variadic = true}};
  def.num_outputs = 2;
  def.attributes = {{.name = "max_norm",
                     .kind = AttributeKind::kFloat,
                     .required = true,
                     .doc = "largest norm that is left alone"}};
  def.infer = InferClipScale;
  registry.Add(std::move(def));
}

}  // namespace espalier
