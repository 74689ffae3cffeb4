#include "ops/operators/convolution.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/operators/activation.h"
#include "ops/operators/expect.h"
#include "ops/operators/pooling.h"

namespace espalier {
namespace {

using Ints = std::vector<int64_t>;

constexpr int64_t kMaxConvolutionWindow = int64_t{1} << 30;
constexpr int64_t kMaxConvolutionPad = int64_t{1} << 40;

// x, weight and the attributes of both kinds, without the relation of weight's dimensions to x.
absl::Status ExpectCommon(const std::string& op, int spatial, const NodeTypes& types) {
  const InputRef x{op, "x", types.inputs[0]};
  const InputRef weight{op, "weight", types.inputs[1]};
  const Attributes& a = types.attributes;
  const size_t n = static_cast<size_t>(spatial);
  ESPALIER_RETURN_IF_ERROR(ExpectInts(op, "strides", a.Ints("strides"), n, 1));
  ESPALIER_RETURN_IF_ERROR(ExpectInts(op, "pads", a.Ints("pads"), 2 * n, 0));
  ESPALIER_RETURN_IF_ERROR(ExpectInts(op, "dilations", a.Ints("dilations"), n, 1));
  ESPALIER_RETURN_IF_ERROR(ExpectPositive(op, "groups", a.Int("groups")));
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  ESPALIER_RETURN_IF_ERROR(ExpectRank(x, spatial + 2));
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(weight, x));
  return ExpectRank(weight, spatial + 2);
}

absl::Status ExpectDivisor(const std::string& op, int64_t groups, int64_t channels,
                           const char* what) {
  if (channels % groups == 0) return absl::OkStatus();
  return AttributeError(op, "groups", std::to_string(groups),
                        absl::StrCat("a divisor of the ", channels, " ", what));
}

absl::Status ExpectInRange(const std::string& op, const NodeTypes& types) {
  const Attributes& a = types.attributes;
  const Dims& weight = types.inputs[1].dims;
  const Ints pads = a.Ints("pads"), dilations = a.Ints("dilations"), strides = a.Ints("strides");
  const bool good =
      std::all_of(weight.begin() + 2, weight.end(),
                  [](int64_t k) { return k >= 1 && k <= kMaxConvolutionWindow; }) &&
      *std::max_element(dilations.begin(), dilations.end()) <= kMaxConvolutionWindow &&
      *std::max_element(strides.begin(), strides.end()) <= kMaxConvolutionWindow &&
      *std::max_element(pads.begin(), pads.end()) <= kMaxConvolutionPad;
  if (good) return absl::OkStatus();
  return OpError(
      op, absl::StrCat("kernel ", ToString(weight), ", strides ", ToString(strides), ", pads ",
                       ToString(pads), " or dilations ", ToString(dilations), " are out of range"));
}

absl::Status ExpectBias(const std::string& op, const NodeTypes& types, int64_t out) {
  if (!types.has_input(2)) return absl::OkStatus();
  const InputRef bias{op, "bias", types.inputs[2]};
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(bias, {op, "x", types.inputs[0]}));
  return ExpectShape(bias, {out}, absl::StrCat("'weight' makes ", out, " channels"));
}

std::string GroupsOf(int64_t channels, int64_t groups) {
  return absl::StrCat("'x' has ", channels, " channels in ", groups,
                      groups == 1 ? " group" : " groups");
}

std::vector<ExpectedDim> KernelDims(ExpectedDim first, ExpectedDim second, int spatial) {
  std::vector<ExpectedDim> dims = {std::move(first), std::move(second)};
  const char* names[] = {"kd", "kh", "kw"};
  for (int d = 0; d < spatial; ++d) {
    dims.emplace_back(spatial == 1 ? "k" : names[3 - spatial + d]);
  }
  return dims;
}

absl::StatusOr<std::vector<TensorType>> InferConvolution(const std::string& op, int spatial,
                                                         const NodeTypes& types) {
  ESPALIER_RETURN_IF_ERROR(ExpectCommon(op, spatial, types));
  ESPALIER_RETURN_IF_ERROR(ExpectActivation(op, types.attributes));
  const TensorType &x = types.inputs[0], &weight = types.inputs[1];
  const Attributes& a = types.attributes;
  const int64_t groups = a.Int("groups"), channels = x.dims[1], out = weight.dims[0];
  ESPALIER_RETURN_IF_ERROR(ExpectDivisor(op, groups, channels, "channels of 'x'"));
  ESPALIER_RETURN_IF_ERROR(ExpectShape({op, "weight", weight},
                                       KernelDims("out", channels / groups, spatial),
                                       GroupsOf(channels, groups)));
  ESPALIER_RETURN_IF_ERROR(ExpectDivisor(op, groups, out, "output channels of 'weight'"));
  ESPALIER_RETURN_IF_ERROR(ExpectInRange(op, types));
  const Ints strides = a.Ints("strides"), pads = a.Ints("pads"), dilations = a.Ints("dilations");
  TensorType y{x.dtype, {x.dims[0], out}};
  for (int d = 0; d < spatial; ++d) {
    const int64_t reach = (weight.dims[2 + d] - 1) * dilations[d] + 1;
    const int64_t padded = x.dims[2 + d] + pads[d] + pads[spatial + d];
    if (reach > padded) {
      return OpError(op, absl::StrCat("the kernel covers ", reach, " of dimension ", 2 + d,
                                      " of 'x', which with its pads has only ", padded,
                                      "; expected a smaller kernel or larger pads"));
    }
    y.dims.push_back((padded - reach) / strides[d] + 1);
  }
  ESPALIER_RETURN_IF_ERROR(ExpectBias(op, types, out));
  return std::vector<TensorType>{y};
}

absl::StatusOr<std::vector<TensorType>> InferTransposed(const std::string& op, int spatial,
                                                        const NodeTypes& types) {
  ESPALIER_RETURN_IF_ERROR(ExpectCommon(op, spatial, types));
  const TensorType &x = types.inputs[0], &weight = types.inputs[1];
  const Attributes& a = types.attributes;
  const int64_t groups = a.Int("groups"), channels = x.dims[1];
  ESPALIER_RETURN_IF_ERROR(ExpectDivisor(op, groups, channels, "channels of 'x'"));
  ESPALIER_RETURN_IF_ERROR(ExpectShape({op, "weight", weight},
                                       KernelDims(channels, "out / groups", spatial),
                                       absl::StrCat("'x' has ", channels, " channels")));
  ESPALIER_RETURN_IF_ERROR(ExpectInRange(op, types));
  const Ints strides = a.Ints("strides"), pads = a.Ints("pads"), dilations = a.Ints("dilations"),
             more = a.Ints("output_padding");
  ESPALIER_RETURN_IF_ERROR(ExpectInts(op, "output_padding", more, spatial, 0));
  if (weight.dims[1] > (int64_t{1} << 46) / groups) {
    return AttributeError(op, "groups", std::to_string(groups), "fewer groups");
  }
  const int64_t out = weight.dims[1] * groups;
  TensorType y{x.dtype, {x.dims[0], out}};
  for (int d = 0; d < spatial; ++d) {
    if (more[d] >= strides[d]) {
      return AttributeError(op, "output_padding", ToString(more),
                            absl::StrCat("integers below the strides ", ToString(strides)));
    }
    if (x.dims[2 + d] > kMaxConvolutionPad) return OpError(op, "'x' is too large");
    const int64_t reach = (weight.dims[2 + d] - 1) * dilations[d] + 1;
    const int64_t size = x.dims[2 + d] == 0 ? 0
                                            : (x.dims[2 + d] - 1) * strides[d] + reach + more[d] -
                                                  pads[d] - pads[spatial + d];
    if (size < 1) {
      return AttributeError(op, "pads", ToString(pads),
                            absl::StrCat("pads that leave something of dimension ", 2 + d,
                                         ", which they make ", size));
    }
    y.dims.push_back(size);
  }
  ESPALIER_RETURN_IF_ERROR(ExpectBias(op, types, out));
  return std::vector<TensorType>{y};
}

// `transposed`: dimension 0 of weight is x's channels, and spatial dimensions stay whole.
SplitRule SplitConvolution(const NodeTypes& types, bool transposed) {
  const Dims& x = types.inputs[0].dims;
  const bool bias = types.has_input(2);
  SplitRule rule;
  rule.axes.push_back({"sample", AxisKind::kSample, x[0]});
  int out = kNotSplit, in = kNotSplit;
  if (types.attributes.Int("groups") == 1) {
    out = 1;
    rule.axes.push_back({"out", AxisKind::kParameter, types.outputs[0].dims[1]});
    // Each shard of a split reduction would add the bias, and an activation is not linear.
    if (!bias && !HasActivation(types.attributes)) {
      in = 2;
      rule.axes.push_back({"in", AxisKind::kReduction, x[1]});
    }
  }
  std::vector<int> x_map = {0, in}, y_map = {0, out};
  std::vector<int> weight = transposed ? std::vector<int>{in, out} : std::vector<int>{out, in};
  for (std::vector<int>* map : {&x_map, &y_map, &weight}) map->resize(x.size(), kNotSplit);
  rule.inputs = {x_map, weight};
  if (types.inputs.size() > 2) {
    rule.inputs.push_back(bias ? std::vector<int>{out} : std::vector<int>{});
  }
  rule.outputs = {y_map};
  if (transposed) return rule;
  const Attributes& a = types.attributes;
  const Ints strides = a.Ints("strides"), pads = a.Ints("pads"), dilations = a.Ints("dilations");
  const int spatial = static_cast<int>(x.size()) - 2;
  for (int d = 0; d < spatial; ++d) {
    SplitWindows({.input = 0,
                  .dim = 2 + d,
                  .stride = strides[d],
                  .before = pads[d],
                  .reach = (types.inputs[1].dims[2 + d] - 1) * dilations[d] + 1},
                 pads[spatial + d], SpatialName(spatial, d), types, &rule);
  }
  return rule;
}

// Multiply-adds per element of y, or of x if transposed.
Cost ConvolutionCost(const NodeTypes& types, const TensorType& side) {
  const Dims& weight = types.inputs[1].dims;
  double per_element = 2;
  for (size_t d = 1; d < weight.size(); ++d) per_element *= static_cast<double>(weight[d]);
  return {per_element * static_cast<double>(side.num_elements()), OperandBytes(types)};
}

OpDef MakeCommon(const std::string& name, int spatial) {
  OpDef def;
  def.name = name;
  def.inputs = {
      {"x"}, {.name = "weight", .wide = true}, {.name = "bias", .optional = true, .wide = true}};
  def.precision = Precision::kNarrow;
  def.types = {DType::kF32, DType::kBF16, DType::kF16};
  const size_t n = static_cast<size_t>(spatial);
  def.attributes = {
      {"strides", AttributeKind::kInts, Ints(n, 1), false, "one per dimension"},
      {"pads", AttributeKind::kInts, Ints(2 * n, 0), false, "all begins, then all ends"},
      {"dilations", AttributeKind::kInts, Ints(n, 1), false, "1: dense kernel"},
      {"groups", AttributeKind::kInt, int64_t{1}, false, "channel groups"}};
  return def;
}

}  // namespace

OpDef MakeConvolution(const std::string& name, int spatial) {
  OpDef def = MakeCommon(name, spatial);
  def.doc =
      "x[N, C, spatial...], weight[O, C/groups, kernel...], bias[O]? -> activation of "
      "[N, O, spatial'...] (correlation)";
  def.attributes.push_back(ActivationAttribute());
  def.infer = [name, spatial](const NodeTypes& types) {
    return InferConvolution(name, spatial, types);
  };
  def.split = [](const NodeTypes& types) { return SplitConvolution(types, false); };
  def.cost = [](const NodeTypes& types) { return ConvolutionCost(types, types.outputs[0]); };
  def.gradient = Gradient{.needs_inputs = {0, 1, 2},
                          .needs_outputs = {0},
                          .differentiable = {0, 1, 2},
                          .is_needed = ActivationNeeds};
  return def;
}

OpDef MakeTransposedConvolution(const std::string& name, int spatial) {
  OpDef def = MakeCommon(name, spatial);
  def.doc =
      "x[N, C, spatial...], weight[C, O/groups, kernel...], bias[O]? -> [N, O, (spatial - 1) * "
      "stride + (kernel - 1) * dilation + 1 + output_padding - pads]";
  def.attributes.push_back({"output_padding", AttributeKind::kInts,
                            Ints(static_cast<size_t>(spatial), 0), false,
                            "added to the size at the end; below the strides"});
  def.infer = [name, spatial](const NodeTypes& types) {
    return InferTransposed(name, spatial, types);
  };
  def.split = [](const NodeTypes& types) { return SplitConvolution(types, true); };
  def.cost = [](const NodeTypes& types) { return ConvolutionCost(types, types.inputs[0]); };
  def.gradient = Gradient{.needs_inputs = {0, 1}, .needs_outputs = {}, .differentiable = {0, 1, 2}};
  return def;
}

}  // namespace espalier
