#include <cmath>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferRotary(const NodeTypes& types) {
  const InputRef x{"rotary", "x", types.inputs[0]};
  const int64_t head_dim = types.attributes.Int("head_dim");
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(x, 2));
  if (head_dim <= 0 || head_dim % 2 != 0) {
    return AttributeError("rotary", "head_dim", std::to_string(head_dim),
                          "a positive even integer");
  }
  if (x.type.dims.back() == 0 || x.type.dims.back() % head_dim != 0) {
    return AttributeError(
        "rotary", "head_dim", std::to_string(head_dim),
        absl::StrCat("a divisor of the last dimension of 'x', ", x.type.dims.back()));
  }
  const double theta = types.attributes.Float("theta");
  if (!(theta > 0)) {
    return AttributeError("rotary", "theta", std::to_string(theta), "a positive number");
  }
  const std::vector<double> frequencies = types.attributes.Floats("frequencies");
  if (2 * static_cast<int64_t>(frequencies.size()) > head_dim) {
    return AttributeError("rotary", "frequencies",
                          absl::StrCat("a list of ", frequencies.size(), " numbers"),
                          absl::StrCat("at most head_dim / 2, ", head_dim / 2, " of them"));
  }
  for (double frequency : frequencies) {
    if (!std::isfinite(frequency)) {
      return AttributeError("rotary", "frequencies", absl::StrCat(frequency), "finite numbers");
    }
  }
  if (!std::isfinite(types.attributes.Float("magnitude"))) {
    return AttributeError("rotary", "magnitude",
                          std::to_string(types.attributes.Float("magnitude")), "a finite number");
  }
  if (types.has_input(1)) {
    const InputRef positions{"rotary", "positions", types.inputs[1]};
    const int64_t rows = x.type.dims[x.type.dims.size() - 2];
    ESPALIER_RETURN_IF_ERROR(ExpectDType(positions, {DType::kI32}));
    ESPALIER_RETURN_IF_ERROR(ExpectShape(
        positions, {rows}, absl::StrCat("'x' has ", rows, " rows in its last but one dimension")));
  }
  return std::vector<TensorType>{x.type};
}

SplitRule SplitRotary(const NodeTypes& types) {
  const Dims& x = types.inputs[0].dims;
  SplitRule rule;
  std::vector<int> map = AddLeadingAxes(x, x.size() - 1, &rule);
  const int heads = static_cast<int>(rule.axes.size());
  rule.axes.push_back({"heads", AxisKind::kParameter, x.back() / types.attributes.Int("head_dim")});
  if (types.inputs.size() > 1) {
    rule.inputs = {map, types.has_input(1) ? std::vector<int>{map.back()} : std::vector<int>{}};
  } else {
    rule.inputs = {map};
  }
  rule.inputs[0].push_back(heads);
  rule.outputs = {rule.inputs[0]};
  return rule;
}

}  // namespace

void RegisterRotary(OpRegistry& registry) {
  OpDef def;
  def.name = "rotary";
  def.doc =
      "x[..., S, H*D], positions[S]? -> like x: in each head, elements i and i + D/2 turn by "
      "position * theta^(-2i/D); with n frequencies elements i and i + n turn by position * "
      "frequencies[i] and those from 2n on stay; without positions row s of the whole tensor has "
      "position s";
  def.inputs = {{"x"}, {"positions", /*optional=*/true}};
  def.attributes = {
      {"head_dim", AttributeKind::kInt, std::nullopt, true, "D, even"},
      {"theta", AttributeKind::kFloat, 10000.0, false, "base of the wave lengths"},
      {"frequencies", AttributeKind::kFloats, std::vector<double>{}, false,
       "radians per position, at most D/2 of them; empty: those of theta"},
      {"magnitude", AttributeKind::kFloat, 1.0, false, "what sines and cosines are multiplied by"}};
  def.infer = InferRotary;
  def.split = SplitRotary;
  def.cost = [](const NodeTypes& types) {
    return Cost{3.0 * static_cast<double>(types.outputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {1}, .needs_outputs = {}, .differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
