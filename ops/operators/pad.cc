#include "ops/kernel/pad.h"

#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/operators/unsplit_axes.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

// Far beyond any tensor, and far from overflow.
constexpr int64_t kMaxPadPad = int64_t{1} << 48;

absl::StatusOr<std::vector<TensorType>> InferPad(const NodeTypes& types) {
  const TensorType& x = types.inputs[0];
  const std::vector<int64_t> pads = types.attributes.Ints("pads");
  const size_t rank = x.dims.size();
  ESPALIER_RETURN_IF_ERROR(ExpectInts("pad", "pads", pads, 2 * rank, -kMaxPadPad));
  const std::string mode_name = types.attributes.String("mode");
  PadMode mode;
  if (!PadModeFromName(mode_name, &mode)) {
    return AttributeError("pad", "mode", absl::StrCat("'", mode_name, "'"),
                          "'constant', 'reflect', 'edge' or 'wrap'");
  }
  TensorType y = x;
  for (size_t d = 0; d < rank; ++d) {
    const int64_t begin = pads[d], end = pads[rank + d];
    if (begin > kMaxPadPad || end > kMaxPadPad || x.dims[d] + begin + end < 0) {
      return AttributeError("pad", "pads", ToString(Dims(pads)),
                            absl::StrCat("values that leave dimension ", d, " of size ", x.dims[d],
                                         " with a size from 0 to 2^46"));
    }
    y.dims[d] = x.dims[d] + begin + end;
    if (mode != PadMode::kConstant && x.dims[d] == 0 && y.dims[d] > 0) {
      return OpError("pad", absl::StrCat("dimension ", d, " of input 'x' is 0: mode '", mode_name,
                                         "' has nothing to repeat"));
    }
  }
  return std::vector<TensorType>{y};
}

// Padding lies at the edges of the whole tensor, so a padded dimension is not split.
SplitRule SplitPad(const NodeTypes& types) {
  const std::vector<int64_t> pads = types.attributes.Ints("pads");
  const size_t rank = types.inputs[0].dims.size();
  std::vector<bool> whole(rank);
  for (size_t d = 0; d < rank; ++d) whole[d] = pads[d] != 0 || pads[rank + d] != 0;
  return SplitAllBut(whole, types);
}

}  // namespace

void RegisterPad(OpRegistry& registry) {
  OpDef def;
  def.name = "pad";
  def.doc =
      "y = x with elements added (or, where negative, cut off) at both ends of each dimension: a "
      "value, or x mirrored without its edge, its edge repeated, or x repeated";
  def.inputs = {{"x"}};
  def.attributes = {{.name = "pads",
                     .kind = AttributeKind::kInts,
                     .required = true,
                     .doc = "elements before each dimension, then after each"},
                    {.name = "mode",
                     .kind = AttributeKind::kString,
                     .default_value = "constant",
                     .doc = "'constant', 'reflect', 'edge' or 'wrap'"},
                    {.name = "value",
                     .kind = AttributeKind::kFloat,
                     .default_value = 0.0,
                     .doc = "what mode 'constant' adds"}};
  def.types = ElementTypes("FISB");
  def.infer = InferPad;
  def.split = SplitPad;
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
