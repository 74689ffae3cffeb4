#include <utility>

#include "ops/operators/expect.h"
#include "ops/operators/unsplit_axes.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterLrn(OpRegistry& registry) {
  OpDef def;
  def.name = "lrn";
  def.doc =
      "x[N, C, ...] -> x / (bias + alpha / size * sum(x^2))^beta, the sum over channels "
      "c - floor((size - 1) / 2) to c + ceil((size - 1) / 2)";
  def.inputs = {{"x"}};
  def.precision = Precision::kF32;
  def.types = {DType::kF32, DType::kBF16, DType::kF16};
  def.attributes = {{"size", AttributeKind::kInt, std::nullopt, true, "channels of a window"},
                    {"alpha", AttributeKind::kFloat, 1e-4, false, ""},
                    {"beta", AttributeKind::kFloat, 0.75, false, ""},
                    {"bias", AttributeKind::kFloat, 1.0, false, ""}};
  def.onnx =
      OnnxForm{"LRN", {{"size", "size"}, {"alpha", "alpha"}, {"beta", "beta"}, {"bias", "bias"}}};
  def.infer = [](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const InputRef x{"lrn", "x", types.inputs[0]};
    ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(x, 2));
    const int64_t size = types.attributes.Int("size");
    ESPALIER_RETURN_IF_ERROR(ExpectPositive("lrn", "size", size));
    if (size > (int64_t{1} << 30)) {
      return AttributeError("lrn", "size", std::to_string(size), "at most 2^30");
    }
    return std::vector<TensorType>{x.type};
  };
  def.split = [](const NodeTypes& types) {
    std::vector<bool> whole(types.inputs[0].dims.size());
    whole[1] = true;
    return SplitAllBut(whole, types);
  };
  def.cost = [](const NodeTypes& types) {
    return Cost{static_cast<double>(types.attributes.Int("size") + 10) *
                    static_cast<double>(types.outputs[0].num_elements()),
                OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0}, .needs_outputs = {}, .differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
