// Batch normalization in two operators, so that the statistics of a split batch can be summed
// between them: batch_norm_stats leaves partial sums, batch_norm reads the complete ones.
#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

void SetCount(const NodeTypes& types, Attributes* attributes) {
  if (attributes->Int("count") > 0) return;
  const TensorType& x = types.inputs[0];
  attributes->Set("count", x.dims[1] > 0 ? x.num_elements() / x.dims[1] : int64_t{0});
}

// Axes of [N, C, ...] with C called "channel".
std::vector<int> AddAxes(const Dims& x, SplitRule* rule) {
  std::vector<int> map = AddLeadingAxes(x, x.size(), rule);
  rule->axes[1].name = "channel";
  return map;
}

absl::StatusOr<std::vector<TensorType>> InferStats(const NodeTypes& types) {
  const InputRef x{"batch_norm_stats", "x", types.inputs[0]};
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(x, 2));
  return std::vector<TensorType>{{x.type.dtype, {2, x.type.dims[1]}}};
}

absl::StatusOr<std::vector<TensorType>> InferBatchNorm(const NodeTypes& types) {
  const InputRef x{"batch_norm", "x", types.inputs[0]};
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(x, 2));
  const int64_t channels = x.type.dims[1];
  const std::string because = absl::StrCat("'x' has ", channels, " channels");
  const char* names[] = {"x", "scale", "bias", "running_mean", "running_var"};
  for (int i = 1; i < 5; ++i) {
    const InputRef input{"batch_norm", names[i], types.inputs[i]};
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType(input, x));
    ESPALIER_RETURN_IF_ERROR(ExpectShape(input, {channels}, because));
  }
  if (types.has_input(5)) {
    const InputRef stats{"batch_norm", "stats", types.inputs[5]};
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType(stats, x));
    ESPALIER_RETURN_IF_ERROR(ExpectShape(stats, {2, channels}, because));
  }
  const std::string activation = types.attributes.String("activation");
  if (activation != "none" && activation != "relu" && activation != "relu6") {
    return AttributeError("batch_norm", "activation", absl::StrCat("'", activation, "'"),
                          "none, relu or relu6");
  }
  if (types.has_input(6)) {
    const InputRef residual{"batch_norm", "residual", types.inputs[6]};
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType(residual, x));
    ESPALIER_RETURN_IF_ERROR(ExpectShape(residual, {x.type.dims.begin(), x.type.dims.end()},
                                         absl::StrCat("'x' is ", ToString(x.type))));
    if (activation != "relu") {
      return AttributeError("batch_norm", "activation", absl::StrCat("'", activation, "'"),
                            "relu, where a residual is given");
    }
  }
  const double epsilon = types.attributes.Float("epsilon");
  if (!(epsilon >= 0)) {
    return AttributeError("batch_norm", "epsilon", std::to_string(epsilon), "a number >= 0");
  }
  const double momentum = types.attributes.Float("momentum");
  if (!(momentum >= 0 && momentum <= 1)) {
    return AttributeError("batch_norm", "momentum", std::to_string(momentum),
                          "a number from 0 to 1");
  }
  return std::vector<TensorType>{x.type};
}

SplitRule SplitBatchNorm(const NodeTypes& types) {
  SplitRule rule;
  const std::vector<int> map = AddAxes(types.inputs[0].dims, &rule);
  const int channel = map[1];
  rule.inputs = {map, {channel}, {channel}, {channel}, {channel}};
  if (types.inputs.size() > 5) {
    rule.inputs.push_back(types.has_input(5) ? std::vector<int>{kNotSplit, channel}
                                             : std::vector<int>{});
  }
  if (types.inputs.size() > 6) {
    rule.inputs.push_back(types.has_input(6) ? map : std::vector<int>{});
  }
  rule.outputs = {map};
  return rule;
}

// The gradient of relu is computed from y, that of relu6 from the value before it, which is
// recomputed.
bool IsNeeded(const Attributes& attributes, bool is_output, int index) {
  const std::string activation = attributes.String("activation");
  if (is_output) return activation == "relu";
  return index != 2 || activation == "relu6";
}

}  // namespace

void RegisterBatchNorm(OpRegistry& registry) {
  const AttributeSpec count = {"count", AttributeKind::kInt, int64_t{0}, false,
                               "elements of one channel in the whole batch; filled in"};
  OpDef stats;
  stats.name = "batch_norm_stats";
  stats.doc = "x[N, C, ...] -> [2, C]: sum(x) / count and sum(x^2) / count over all but C";
  stats.inputs = {{"x"}};
  stats.precision = Precision::kF32;
  stats.attributes = {count};
  stats.infer = InferStats;
  stats.canonicalize = SetCount;
  stats.split = [](const NodeTypes& types) {
    SplitRule rule;
    const std::vector<int> map = AddAxes(types.inputs[0].dims, &rule);
    rule.inputs = {map};
    rule.outputs = {{kNotSplit, map[1]}};
    return rule;
  };
  stats.cost = [](const NodeTypes& types) {
    return Cost{3.0 * static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  stats.gradient = Gradient{.needs_inputs = {0}, .needs_outputs = {}, .differentiable = {0}};
  registry.Add(std::move(stats));

  OpDef def;
  def.name = "batch_norm";
  def.doc =
      "x[N, C, ...], scale[C], bias[C], running_mean[C], running_var[C], stats[2, C]?, "
      "residual[N, C, ...]? -> activation of (x - mean) / sqrt(var + epsilon) * scale + bias + "
      "residual; training takes mean and var from stats and moves the running ones (inputs 3 and "
      "4) in place, otherwise the running ones are used";
  def.inputs = {{"x"},
                {"scale"},
                {"bias"},
                {"running_mean"},
                {"running_var"},
                {"stats", /*optional=*/true},
                {"residual", /*optional=*/true}};
  def.precision = Precision::kF32;
  def.attributes = {
      {"epsilon", AttributeKind::kFloat, 1e-5, false, "added to the variance"},
      {"momentum", AttributeKind::kFloat, 0.1, false, "running = (1 - m) * running + m * batch"},
      {"activation", AttributeKind::kString, std::string("none"), false,
       "applied to the result: none, relu, relu6 (relu, at most 6)"},
      {"biased_running_var", AttributeKind::kBool, false, false,
       "move running_var by the mean of squares, as Keras and Flax do; otherwise by the unbiased "
       "variance, which is count / (count - 1) of it"},
      count};
  def.infer = InferBatchNorm;
  def.canonicalize = SetCount;
  def.split = SplitBatchNorm;
  def.cost = [](const NodeTypes& types) {
    return Cost{2.0 * static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0, 1, 2, 3, 4, 5},
                          .needs_outputs = {0},
                          .differentiable = {0, 1, 2, 5, 6},
                          .is_needed = IsNeeded,
                          .constants = {3, 4}};
  registry.Add(std::move(def));
}

}  // namespace espalier
