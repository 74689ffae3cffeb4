#include "ops/operators/pooling.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"

namespace espalier {
namespace {

using Ints = std::vector<int64_t>;

constexpr int64_t kMaxPoolingWindow = int64_t{1} << 30;

}  // namespace

std::vector<AttributeSpec> WindowAttributes() {
  return {{"kernel", AttributeKind::kInts, std::nullopt, true, "height, width"},
          {"strides", AttributeKind::kInts, Ints{1, 1}, false, "vertical, horizontal"},
          {"pads", AttributeKind::kInts, Ints{0, 0, 0, 0}, false, "top, left, bottom, right"},
          {"dilations", AttributeKind::kInts, Ints{1, 1}, false, "1: dense windows"},
          {"ceil_mode", AttributeKind::kBool, false, false, "round the output's size up"}};
}

absl::StatusOr<Dims> WindowedSize(const std::string& op, const NodeTypes& types) {
  const InputRef x{op, "x", types.inputs[0]};
  const Attributes& a = types.attributes;
  const Ints kernel = a.Ints("kernel"), strides = a.Ints("strides"), pads = a.Ints("pads"),
             dilations = a.Ints("dilations");
  ESPALIER_RETURN_IF_ERROR(ExpectInts(op, "kernel", kernel, 2, 1));
  ESPALIER_RETURN_IF_ERROR(ExpectInts(op, "strides", strides, 2, 1));
  ESPALIER_RETURN_IF_ERROR(ExpectInts(op, "pads", pads, 4, 0));
  ESPALIER_RETURN_IF_ERROR(ExpectInts(op, "dilations", dilations, 2, 1));
  for (const auto& [name, values] : {std::pair("kernel", kernel), std::pair("strides", strides),
                                     std::pair("dilations", dilations)}) {
    if (std::max(values[0], values[1]) <= kMaxPoolingWindow) continue;
    return AttributeError(op, name, ToString(Dims(values)),
                          absl::StrCat("integers of at most ", kMaxPoolingWindow));
  }
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  ESPALIER_RETURN_IF_ERROR(ExpectRank(x, 4));
  Dims out(2);
  for (int d = 0; d < 2; ++d) {
    const int64_t reach = (kernel[d] - 1) * dilations[d] + 1;
    if (pads[d] >= reach || pads[2 + d] >= reach) {
      return AttributeError(op, "pads", ToString(Dims(pads)),
                            absl::StrCat("pads smaller than the kernel ", ToString(Dims(kernel)),
                                         ", so that no window lies in them alone"));
    }
    const int64_t size = x.type.dims[2 + d];
    const int64_t padded = size + pads[d] + pads[2 + d];
    if (reach > padded || size == 0) {
      return OpError(op, absl::StrCat("the kernel covers ", reach, " of dimension ", 2 + d,
                                      " of 'x', which has ", size, " (", padded,
                                      " with its pads); expected a smaller kernel"));
    }
    const bool up = a.Bool("ceil_mode");
    out[d] = (padded - reach + (up ? strides[d] - 1 : 0)) / strides[d] + 1;
    // As in PyTorch: the last window must begin inside the image or the padding before it.
    if (up && (out[d] - 1) * strides[d] >= size + pads[d]) --out[d];
  }
  return out;
}

SplitRule SplitPlanes(const NodeTypes& types) {
  const Dims& x = types.inputs[0].dims;
  SplitRule rule;
  rule.axes = {{"sample", AxisKind::kSample, x[0]}, {"channel", AxisKind::kAttribute, x[1]}};
  rule.inputs.assign(types.inputs.size(), {0, 1, kNotSplit, kNotSplit});
  rule.outputs.assign(types.outputs.size(), {0, 1, kNotSplit, kNotSplit});
  return rule;
}

const char* SpatialName(int spatial, int dim) {
  static constexpr const char* kNames[] = {"depth", "height", "width"};
  return spatial == 1 ? "length" : kNames[3 - spatial + dim];
}

void SplitWindows(const Halo& halo, int64_t after, const char* name, const NodeTypes& types,
                  SplitRule* rule) {
  const int64_t extent = types.outputs[0].dims[halo.dim];
  if (halo.before >= halo.reach || after >= halo.reach || extent < 1) return;
  const int axis = static_cast<int>(rule->axes.size());
  rule->axes.push_back({name, AxisKind::kAttribute, extent});
  rule->inputs[halo.input][halo.dim] = axis;
  rule->outputs[0][halo.dim] = axis;
  rule->halos.push_back(halo);
}

Cost WindowCost(const NodeTypes& types) {
  const Ints kernel = types.attributes.Ints("kernel");
  return {static_cast<double>(types.outputs[0].num_elements()) * static_cast<double>(kernel[0]) *
              static_cast<double>(kernel[1]),
          OperandBytes(types)};
}

}  // namespace espalier
