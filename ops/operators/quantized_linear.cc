// linear with quantized weights that are multiplied directly, for serving. With 8- or 4-bit weights
// the rows of x are quantized to 8 bits.
#include "absl/strings/str_cat.h"
#include "ops/kernel/packed_weights.h"
#include "ops/operators/activation.h"
#include "ops/operators/expect.h"
#include "ops/operators/quantized_weight.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

constexpr char kQuantizedLinear[] = "quantized_linear";

absl::StatusOr<std::vector<TensorType>> InferQuantizedLinear(const NodeTypes& types) {
  const InputRef x{kQuantizedLinear, "x", types.inputs[0]},
      weight{kQuantizedLinear, "weight", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectActivation(kQuantizedLinear, types.attributes));
  ESPALIER_RETURN_IF_ERROR(ExpectDType(x, {DType::kF32}));
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(x, 1));
  const int64_t in = x.type.dims.back(), out = types.attributes.Int("out");
  ESPALIER_RETURN_IF_ERROR(ExpectQuantizedWeight(weight, in, types.attributes));
  if (types.has_input(2)) {
    const InputRef bias{kQuantizedLinear, "bias", types.inputs[2]};
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType(bias, x));
    ESPALIER_RETURN_IF_ERROR(ExpectShape(bias, {out}, absl::StrCat("'out' is ", out)));
  }
  TensorType y = x.type;
  y.dims.back() = out;
  return std::vector<TensorType>{y};
}

// Packed weights can be cut between blocks of outputs, and along the inputs where no group
// straddles a cut: then each group's sum equals the whole matrix's, bit for bit. A box of the bytes
// is the packed matrix of those inputs.
SplitRule SplitQuantizedLinear(const NodeTypes& types) {
  const Dims& x = types.inputs[0].dims;
  const bool bias = types.has_input(2);
  const int64_t out = types.attributes.Int("out");
  SplitRule rule;
  std::vector<int> x_map = AddLeadingAxes(x, x.size() - 1, &rule);
  std::vector<int> y_map = x_map;
  std::vector<int> weight = {kNotSplit, kNotSplit};
  x_map.push_back(kNotSplit);
  y_map.push_back(kNotSplit);
  const auto add = [&rule](const char* name, AxisKind kind, int64_t size) {
    rule.axes.push_back({name, kind, size});
    return static_cast<int>(rule.axes.size()) - 1;
  };
  if (types.attributes.Int("bits") == 16) {
    weight[0] = y_map.back() = add("out", AxisKind::kParameter, out);
    // As in linear: bias and activation must not be applied per partial sum.
    if (!bias && !HasActivation(types.attributes)) {
      weight[1] = x_map.back() = add("in", AxisKind::kReduction, x.back());
    }
  } else {
    const int64_t unit = PackedWeights{static_cast<int>(types.attributes.Int("bits"))}.unit();
    if (out % kPackOutputs == 0) {
      weight[0] = y_map.back() = add("out", AxisKind::kParameter, out / kPackOutputs);
    }
    if (!bias && !HasActivation(types.attributes) && x.back() % unit == 0) {
      weight[1] = x_map.back() = add("in", AxisKind::kReduction, x.back() / unit);
    }
  }
  rule.inputs = {x_map, weight};
  if (types.inputs.size() > 2) {
    rule.inputs.push_back(bias ? std::vector<int>{y_map.back()} : std::vector<int>{});
  }
  rule.outputs = {y_map};
  return rule;
}

}  // namespace

void RegisterQuantizedLinear(OpRegistry& registry) {
  OpDef def;
  def.name = kQuantizedLinear;
  def.doc =
      "x[..., in] f32, weight, bias[out]? -> activation of x weight^T + bias [..., out]. weight is "
      "bf16 or f16[out, in], or u8[blocks, block bytes] with 8 or 4 bits in groups of 32 inputs "
      "(ops/kernel/packed_weights.h); with these x is rounded to 8 bits in the same groups";
  def.attributes = QuantizedWeightAttributes("rows of the whole weight matrix");
  def.attributes.push_back(ActivationAttribute());
  def.inputs = {{"x"}, {"weight"}, {.name = "bias", .optional = true}};
  def.infer = InferQuantizedLinear;
  def.split = SplitQuantizedLinear;
  def.cost = [](const NodeTypes& types) {
    const double in = static_cast<double>(types.inputs[0].dims.back());
    return Cost{2.0 * static_cast<double>(types.outputs[0].num_elements()) * in,
                OperandBytes(types)};
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
