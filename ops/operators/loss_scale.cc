// Dynamic loss scaling (ops/kernel/loss_scale.h) in two operators: the factor of the loss, and the
// treatment of the gradients before the update.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

AttributeSpec InitialAttribute() {
  return {"initial", AttributeKind::kFloat, 65536.0, false, "scale of the first step, 2^n"};
}

absl::Status CheckInitial(const char* op, const Attributes& attributes) {
  const double initial = attributes.Float("initial");
  int exponent = 0;
  if (initial >= 0x1p-24 && initial <= 0x1p100 && std::frexp(initial, &exponent) == 0.5) {
    return absl::OkStatus();
  }
  return AttributeError(op, "initial", absl::StrCat(initial), "a power of two, 2^-24 to 2^100");
}

absl::Status ExpectVector(const char* op, const char* name, const TensorType& type, int64_t size) {
  const InputRef input{op, name, type};
  ESPALIER_RETURN_IF_ERROR(ExpectDType(input, {DType::kF32}));
  return ExpectShape(input,
                     size == 0 ? std::vector<ExpectedDim>{} : std::vector<ExpectedDim>{size});
}

absl::StatusOr<std::vector<TensorType>> InferScale(const NodeTypes& types) {
  ESPALIER_RETURN_IF_ERROR(CheckInitial("loss_scale", types.attributes));
  ESPALIER_RETURN_IF_ERROR(ExpectVector("loss_scale", "state", types.inputs[0], 3));
  return std::vector<TensorType>{{DType::kF32, {}}};
}

absl::StatusOr<std::vector<TensorType>> InferUnscale(const NodeTypes& types) {
  const char* op = "unscale_gradients";
  ESPALIER_RETURN_IF_ERROR(CheckInitial(op, types.attributes));
  const int64_t interval = types.attributes.Int("growth_interval");
  if (interval < 0 || interval > (1 << 24)) {
    return AttributeError(op, "growth_interval", absl::StrCat(interval), "0 (fixed) to 2^24");
  }
  const double max_norm = types.attributes.Float("max_norm");
  if (!(max_norm >= 0)) {
    return AttributeError(op, "max_norm", absl::StrCat(max_norm), "0 (off) or more");
  }
  ESPALIER_RETURN_IF_ERROR(ExpectVector(op, "squares", types.inputs[0], 0));
  ESPALIER_RETURN_IF_ERROR(ExpectVector(op, "state", types.inputs[1], 3));
  ESPALIER_RETURN_IF_ERROR(ExpectVector(op, "hyper", types.inputs[2], 2));
  return std::vector<TensorType>{{DType::kF32, {}}, {DType::kF32, {}}, {DType::kF32, {2}}};
}

}  // namespace

void RegisterLossScale(OpRegistry& registry) {
  OpDef scale;
  scale.name = "loss_scale";
  scale.doc = "state f32[3] -> initial * 2^state[0], a scalar";
  scale.inputs = {{"state"}};
  scale.attributes = {InitialAttribute()};
  scale.infer = InferScale;
  registry.Add(std::move(scale));

  OpDef unscale;
  unscale.name = "unscale_gradients";
  unscale.doc =
      "squares (scalar: sum of the scaled gradients' squares), state f32[3] (moved in place), "
      "hyper "
      "f32[2] = (learning rate, step) -> factor of the gradients, their norm without it, hyper "
      "with "
      "the number of the update as step: 0, for no update, where squares is not finite";
  unscale.inputs = {{"squares"}, {"state"}, {"hyper"}};
  unscale.num_outputs = 3;
  unscale.attributes = {
      InitialAttribute(),
      {"growth_interval", AttributeKind::kInt, int64_t{2000}, false,
       "updates until the scale doubles; 0: it never changes"},
      {"max_norm", AttributeKind::kFloat, 0.0, false, "largest norm that is left alone; 0: any"}};
  unscale.infer = InferUnscale;
  registry.Add(std::move(unscale));
}

}  // namespace espalier
