#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/operators/pooling.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferPool2d(const NodeTypes& types) {
  const std::string kind = types.attributes.String("kind");
  if (kind != "max" && kind != "average" && kind != "lp") {
    return AttributeError("pool2d", "kind", absl::StrCat("'", kind, "'"),
                          "'max', 'average' or 'lp'");
  }
  ESPALIER_RETURN_IF_ERROR(ExpectPositive("pool2d", "p", types.attributes.Int("p")));
  absl::StatusOr<Dims> size = WindowedSize("pool2d", types);
  if (!size.ok()) return size.status();
  const Dims& x = types.inputs[0].dims;
  return std::vector<TensorType>{{types.inputs[0].dtype, {x[0], x[1], (*size)[0], (*size)[1]}}};
}

}  // namespace

void RegisterPool2d(OpRegistry& registry) {
  OpDef def;
  def.name = "pool2d";
  def.doc =
      "x[N, C, H, W] -> [N, C, H', W']: maximum, average or p-norm (without absent elements) over "
      "windows";
  def.inputs = {{"x"}};
  def.types = {DType::kF32, DType::kBF16, DType::kF16};
  def.attributes = WindowAttributes();
  def.attributes.push_back(
      {"kind", AttributeKind::kString, std::nullopt, true, "'max', 'average' or 'lp'"});
  def.attributes.push_back(
      {"count_include_pad", AttributeKind::kBool, false, false, "average: pads count as zeros"});
  def.attributes.push_back({"p", AttributeKind::kInt, int64_t{2}, false, "lp: the exponent"});
  def.infer = InferPool2d;
  def.split = [](const NodeTypes& types) {
    SplitRule rule = SplitPlanes(types);
    const Attributes& a = types.attributes;
    for (int d = 0; d < 2; ++d) {
      SplitWindows({.input = 0,
                    .dim = 2 + d,
                    .stride = a.Ints("strides")[d],
                    .before = a.Ints("pads")[d],
                    .reach = (a.Ints("kernel")[d] - 1) * a.Ints("dilations")[d] + 1},
                   a.Ints("pads")[2 + d], SpatialName(2, d), types, &rule);
    }
    return rule;
  };
  def.cost = WindowCost;
  def.gradient = Gradient{.needs_inputs = {0},
                          .needs_outputs = {0},
                          .differentiable = {0},
                          .is_needed = [](const Attributes& attributes, bool is_output, int) {
                            return !is_output || attributes.String("kind") == "lp";
                          }};
  registry.Add(std::move(def));
}

}  // namespace espalier
