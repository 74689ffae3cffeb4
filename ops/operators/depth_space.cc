#include "ops/operators/depth_space.h"

#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"

namespace espalier {
namespace {

absl::Status ExpectMultiple(const InputRef& x, size_t d, int64_t of, const std::string& what) {
  if (x.type.dims[d] % of == 0) return absl::OkStatus();
  return OpError(
      x.op, absl::StrCat("input 'x' has shape ", ToString(x.type.dims), ", expected a multiple of ",
                         of, " in dimension ", d, " because ", what));
}

}  // namespace

OpDef MakeDepthSpace(const std::string& name, const std::string& doc, bool to_space) {
  OpDef def;
  def.name = name;
  def.doc = doc;
  def.inputs = {{"x"}};
  def.attributes = {{.name = "blocksize",
                     .kind = AttributeKind::kInt,
                     .required = true,
                     .doc = "side of a block of pixels"}};
  def.types = ElementTypes("FISB");
  def.infer = [name, to_space](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const InputRef x{name, "x", types.inputs[0]};
    ESPALIER_RETURN_IF_ERROR(ExpectRank(x, 4));
    const int64_t block = types.attributes.Int("blocksize");
    if (block < 1 || block > (int64_t{1} << 20)) {
      return AttributeError(name, "blocksize", absl::StrCat(block), "a value from 1 to 2^20");
    }
    TensorType y = x.type;
    const std::string because = absl::StrCat("blocksize is ", block);
    if (to_space) {
      ESPALIER_RETURN_IF_ERROR(ExpectMultiple(x, 1, block * block, because));
      y.dims = {y.dims[0], y.dims[1] / (block * block), y.dims[2] * block, y.dims[3] * block};
    } else {
      ESPALIER_RETURN_IF_ERROR(ExpectMultiple(x, 2, block, because));
      ESPALIER_RETURN_IF_ERROR(ExpectMultiple(x, 3, block, because));
      y.dims = {y.dims[0], y.dims[1] * block * block, y.dims[2] / block, y.dims[3] / block};
    }
    return std::vector<TensorType>{y};
  };
  // Images are split between blocks.
  def.split = [to_space](const NodeTypes& types) {
    const Dims& coarse = (to_space ? types.inputs : types.outputs)[0].dims;
    SplitRule rule;
    rule.axes = {{"sample", AxisKind::kSample, coarse[0]},
                 {"dim2", AxisKind::kAttribute, coarse[2]},
                 {"dim3", AxisKind::kAttribute, coarse[3]}};
    rule.inputs = rule.outputs = {{0, kNotSplit, 1, 2}};
    return rule;
  };
  def.gradient = Gradient{.differentiable = {0}};
  return def;
}

}  // namespace espalier
