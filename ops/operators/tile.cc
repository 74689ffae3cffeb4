#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/operators/unsplit_axes.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferTile(const NodeTypes& types) {
  TensorType y = types.inputs[0];
  const std::vector<int64_t> repeats = types.attributes.Ints("repeats");
  ESPALIER_RETURN_IF_ERROR(ExpectInts("tile", "repeats", repeats, y.dims.size(), 0));
  for (size_t d = 0; d < y.dims.size(); ++d) {
    if (__builtin_mul_overflow(y.dims[d], repeats[d], &y.dims[d])) {
      return AttributeError("tile", "repeats", ToString(Dims(repeats)),
                            absl::StrCat("numbers that keep dimension ", d, " below 2^46"));
    }
  }
  return std::vector<TensorType>{y};
}

// A repeated dimension is not split: repeats of a shard are not a shard of the repeats.
SplitRule SplitTile(const NodeTypes& types) {
  std::vector<bool> whole;
  for (int64_t repeat : types.attributes.Ints("repeats")) whole.push_back(repeat != 1);
  return SplitAllBut(whole, types);
}

}  // namespace

void RegisterTile(OpRegistry& registry) {
  OpDef def;
  def.name = "tile";
  def.doc = "y = x repeated repeats[d] times along every dimension d";
  def.inputs = {{"x"}};
  def.attributes = {{.name = "repeats",
                     .kind = AttributeKind::kInts,
                     .required = true,
                     .doc = "one number for each dimension"}};
  def.types = ElementTypes("FISB");
  def.infer = InferTile;
  def.split = SplitTile;
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
