#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferGridSample(const NodeTypes& types) {
  const InputRef x{"grid_sample", "x", types.inputs[0]};
  const InputRef grid{"grid_sample", "grid", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectRank(x, 4));
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(grid, x));
  const Dims& dims = x.type.dims;
  ESPALIER_RETURN_IF_ERROR(ExpectShape(grid, {dims[0], "height", "width", int64_t{2}},
                                       absl::StrCat("'x' holds ", dims[0], " images")));
  if (dims[2] == 0 || dims[3] == 0) {
    return OpError("grid_sample", absl::StrCat("input 'x' has shape ", ToString(dims),
                                               ", expected images that are not empty"));
  }
  const std::string mode = types.attributes.String("mode");
  if (mode != "bilinear" && mode != "nearest" && mode != "bicubic") {
    return AttributeError("grid_sample", "mode", absl::StrCat("'", mode, "'"),
                          "'bilinear', 'nearest' or 'bicubic'");
  }
  const std::string padding = types.attributes.String("padding");
  if (padding != "zeros" && padding != "border" && padding != "reflection") {
    return AttributeError("grid_sample", "padding", absl::StrCat("'", padding, "'"),
                          "'zeros', 'border' or 'reflection'");
  }
  const Dims& g = grid.type.dims;
  return std::vector<TensorType>{{x.type.dtype, {dims[0], dims[1], g[1], g[2]}}};
}

}  // namespace

void RegisterGridSample(OpRegistry& registry) {
  OpDef def;
  def.name = "grid_sample";
  def.doc =
      "x[N, C, H, W], grid[N, H', W', 2] -> x at the grid's points [N, C, H', W']; a point is "
      "(horizontal, vertical), -1 and 1 the image's borders";
  def.inputs = {{"x"}, {"grid"}};
  def.types = {DType::kF32, DType::kBF16, DType::kF16};
  def.attributes = {{"mode", AttributeKind::kString, std::string("bilinear"), false,
                     "bilinear, nearest or bicubic"},
                    {"padding", AttributeKind::kString, std::string("zeros"), false,
                     "outside x: zeros, border or reflection"},
                    {"align_corners", AttributeKind::kBool, false, false,
                     "-1 and 1 are the centres of the outermost elements, not their borders"}};
  def.infer = InferGridSample;
  def.split = [](const NodeTypes& types) {
    const Dims &x = types.inputs[0].dims, &grid = types.inputs[1].dims;
    SplitRule rule;
    // Shards of the channels hold partial sums of the grid's gradient.
    rule.axes = {{"sample", AxisKind::kSample, x[0]},
                 {"channel", AxisKind::kAttribute, x[1]},
                 {"height", AxisKind::kAttribute, grid[1]},
                 {"width", AxisKind::kAttribute, grid[2]}};
    rule.inputs = {{0, 1, kNotSplit, kNotSplit}, {0, 2, 3, kNotSplit}};
    rule.outputs = {{0, 1, 2, 3}};
    return rule;
  };
  def.cost = [](const NodeTypes& types) {
    return Cost{8.0 * static_cast<double>(types.outputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0, 1}, .needs_outputs = {}, .differentiable = {0, 1}};
  registry.Add(std::move(def));
}

}  // namespace espalier
