#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

constexpr int64_t kMaxWindow = int64_t{1} << 30;

absl::StatusOr<std::vector<TensorType>> Infer(const NodeTypes& types) {
  const InputRef x{"pool2d", "x", types.inputs[0]};
  const Attributes& a = types.attributes;
  const std::string kind = a.String("kind");
  const std::vector<int64_t> kernel = a.Ints("kernel"), strides = a.Ints("strides"),
                             pads = a.Ints("pads");
  if (kind != "max" && kind != "average") {
    return AttributeError("pool2d", "kind", absl::StrCat("'", kind, "'"), "'max' or 'average'");
  }
  ESPALIER_RETURN_IF_ERROR(ExpectInts("pool2d", "kernel", kernel, 2, 1));
  ESPALIER_RETURN_IF_ERROR(ExpectInts("pool2d", "strides", strides, 2, 1));
  ESPALIER_RETURN_IF_ERROR(ExpectInts("pool2d", "pads", pads, 4, 0));
  for (const auto& [name, values] : {std::pair("kernel", kernel), std::pair("strides", strides)}) {
    if (std::max(values[0], values[1]) <= kMaxWindow) continue;
    return AttributeError("pool2d", name, ToString(Dims(values)),
                          absl::StrCat("integers of at most ", kMaxWindow));
  }
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  ESPALIER_RETURN_IF_ERROR(ExpectRank(x, 4));
  TensorType y = x.type;
  for (int d = 0; d < 2; ++d) {
    if (pads[d] >= kernel[d] || pads[2 + d] >= kernel[d]) {
      return AttributeError("pool2d", "pads", ToString(Dims(pads)),
                            absl::StrCat("pads smaller than the kernel ", ToString(Dims(kernel)),
                                         ", so that no window lies in them alone"));
    }
    const int64_t size = x.type.dims[2 + d];
    const int64_t padded = size + pads[d] + pads[2 + d];
    if (kernel[d] > padded || size == 0) {
      return OpError("pool2d", absl::StrCat("the kernel covers ", kernel[d], " of dimension ",
                                            2 + d, " of 'x', which has ", size, " (", padded,
                                            " with its pads); expected a smaller kernel"));
    }
    const bool up = a.Bool("ceil_mode");
    int64_t out = (padded - kernel[d] + (up ? strides[d] - 1 : 0)) / strides[d] + 1;
    // As in PyTorch: the last window must begin inside the image or the padding before it.
    if (up && (out - 1) * strides[d] >= size + pads[d]) --out;
    y.dims[2 + d] = out;
  }
  return std::vector<TensorType>{y};
}

}  // namespace

void RegisterPool2d(OpRegistry& registry) {
  OpDef def;
  def.name = "pool2d";
  def.doc = "x[N, C, H, W] -> [N, C, H', W']: maximum or average over windows";
  def.inputs = {{"x"}};
  using Ints = std::vector<int64_t>;
  def.attributes = {
      {"kind", AttributeKind::kString, std::nullopt, true, "'max' or 'average'"},
      {"kernel", AttributeKind::kInts, std::nullopt, true, "height, width"},
      {"strides", AttributeKind::kInts, Ints{1, 1}, false, "vertical, horizontal"},
      {"pads", AttributeKind::kInts, Ints{0, 0, 0, 0}, false, "top, left, bottom, right"},
      {"count_include_pad", AttributeKind::kBool, false, false, "average: pads count as zeros"},
      {"ceil_mode", AttributeKind::kBool, false, false, "round the output's size up"}};
  def.infer = Infer;
  def.split = [](const NodeTypes& types) {
    const Dims& x = types.inputs[0].dims;
    SplitRule rule;
    rule.axes = {{"sample", AxisKind::kSample, x[0]}, {"channel", AxisKind::kAttribute, x[1]}};
    rule.inputs = {{0, 1, kNotSplit, kNotSplit}};
    rule.outputs = rule.inputs;
    return rule;
  };
  def.cost = [](const NodeTypes& types) {
    const std::vector<int64_t> kernel = types.attributes.Ints("kernel");
    return Cost{static_cast<double>(types.outputs[0].num_elements()) *
                    static_cast<double>(kernel[0]) * static_cast<double>(kernel[1]),
                OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0}, .needs_outputs = {}, .differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
