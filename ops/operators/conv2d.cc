#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> Infer(const NodeTypes& types) {
  const InputRef x{"conv2d", "x", types.inputs[0]};
  const InputRef weight{"conv2d", "weight", types.inputs[1]};
  const Attributes& a = types.attributes;
  const std::vector<int64_t> strides = a.Ints("strides"), pads = a.Ints("pads"),
                             dilations = a.Ints("dilations");
  const int64_t groups = a.Int("groups");
  ESPALIER_RETURN_IF_ERROR(ExpectInts("conv2d", "strides", strides, 2, 1));
  ESPALIER_RETURN_IF_ERROR(ExpectInts("conv2d", "pads", pads, 4, 0));
  ESPALIER_RETURN_IF_ERROR(ExpectInts("conv2d", "dilations", dilations, 2, 1));
  ESPALIER_RETURN_IF_ERROR(ExpectPositive("conv2d", "groups", groups));
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  ESPALIER_RETURN_IF_ERROR(ExpectRank(x, 4));
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(weight, x));
  const int64_t channels = x.type.dims[1];
  if (channels % groups != 0) {
    return AttributeError("conv2d", "groups", std::to_string(groups),
                          absl::StrCat("a divisor of the ", channels, " channels of 'x'"));
  }
  ESPALIER_RETURN_IF_ERROR(ExpectShape(weight, {"out", channels / groups, "kh", "kw"},
                                       absl::StrCat("'x' has ", channels, " channels in ", groups,
                                                    groups == 1 ? " group" : " groups")));
  const int64_t out = weight.type.dims[0];
  if (out % groups != 0) {
    return AttributeError("conv2d", "groups", std::to_string(groups),
                          absl::StrCat("a divisor of the ", out, " output channels of 'weight'"));
  }
  TensorType y{x.type.dtype, {x.type.dims[0], out, 0, 0}};
  for (int d = 0; d < 2; ++d) {
    const int64_t kernel = weight.type.dims[2 + d];
    if (kernel < 1 || kernel > (int64_t{1} << 30) || dilations[d] > (int64_t{1} << 30) ||
        pads[d] > (int64_t{1} << 40) || pads[2 + d] > (int64_t{1} << 40)) {
      return OpError("conv2d", absl::StrCat("kernel ", ToString(weight.type.dims), ", pads ",
                                            ToString(Dims(pads)), " or dilations ",
                                            ToString(Dims(dilations)), " are out of range"));
    }
    const int64_t reach = (kernel - 1) * dilations[d] + 1;
    const int64_t padded = x.type.dims[2 + d] + pads[d] + pads[2 + d];
    if (reach > padded) {
      return OpError("conv2d", absl::StrCat("the kernel covers ", reach, " of dimension ", 2 + d,
                                            " of 'x', which with its pads has only ", padded,
                                            "; expected a smaller kernel or larger pads"));
    }
    y.dims[2 + d] = (padded - reach) / strides[d] + 1;
  }
  if (types.has_input(2)) {
    const InputRef bias{"conv2d", "bias", types.inputs[2]};
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType(bias, x));
    ESPALIER_RETURN_IF_ERROR(
        ExpectShape(bias, {out}, absl::StrCat("'weight' makes ", out, " channels")));
  }
  return std::vector<TensorType>{y};
}

// Height and width stay whole: parts would overlap by the kernel's reach.
SplitRule Split(const NodeTypes& types) {
  const Dims& x = types.inputs[0].dims;
  const bool bias = types.has_input(2);
  SplitRule rule;
  rule.axes.push_back({"sample", AxisKind::kSample, x[0]});
  int out = kNotSplit, in = kNotSplit;
  if (types.attributes.Int("groups") == 1) {
    out = 1;
    rule.axes.push_back({"out", AxisKind::kParameter, types.inputs[1].dims[0]});
    if (!bias) {
      in = 2;
      rule.axes.push_back({"in", AxisKind::kReduction, x[1]});
    }
  }
  rule.inputs = {{0, in, kNotSplit, kNotSplit}, {out, in, kNotSplit, kNotSplit}};
  if (types.inputs.size() > 2)
    rule.inputs.push_back(bias ? std::vector<int>{out} : std::vector<int>{});
  rule.outputs = {{0, out, kNotSplit, kNotSplit}};
  return rule;
}

}  // namespace

void RegisterConv2d(OpRegistry& registry) {
  OpDef def;
  def.name = "conv2d";
  def.doc = "x[N, C, H, W], weight[O, C/groups, kh, kw], bias[O]? -> [N, O, H', W'] (correlation)";
  def.inputs = {{"x"}, {"weight"}, {"bias", /*optional=*/true}};
  using Ints = std::vector<int64_t>;
  def.attributes = {
      {"strides", AttributeKind::kInts, Ints{1, 1}, false, "vertical, horizontal"},
      {"pads", AttributeKind::kInts, Ints{0, 0, 0, 0}, false, "top, left, bottom, right"},
      {"dilations", AttributeKind::kInts, Ints{1, 1}, false, "1: dense kernel"},
      {"groups", AttributeKind::kInt, int64_t{1}, false, "channel groups"}};
  def.infer = Infer;
  def.split = Split;
  def.cost = [](const NodeTypes& types) {
    const Dims& w = types.inputs[1].dims;
    return Cost{2.0 * static_cast<double>(types.outputs[0].num_elements()) *
                    static_cast<double>(w[1] * w[2] * w[3]),
                OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0, 1}, .needs_outputs = {}, .differentiable = {0, 1, 2}};
  registry.Add(std::move(def));
}

}  // namespace espalier
