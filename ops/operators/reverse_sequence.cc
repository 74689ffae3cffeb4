#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/operators/unsplit_axes.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

struct Roles {
  int batch = 0, time = 0;
};

absl::StatusOr<Roles> RolesOf(const NodeTypes& types) {
  const int rank = static_cast<int>(types.inputs[0].dims.size());
  const Attributes& attributes = types.attributes;
  absl::StatusOr<int> batch =
      NormalizeAxis("reverse_sequence", "batch_axis", attributes.Int("batch_axis"), rank);
  if (!batch.ok()) return batch.status();
  absl::StatusOr<int> time =
      NormalizeAxis("reverse_sequence", "time_axis", attributes.Int("time_axis"), rank);
  if (!time.ok()) return time.status();
  if (*batch == *time) {
    return AttributeError("reverse_sequence", "time_axis", absl::StrCat(*time),
                          "a dimension other than batch_axis");
  }
  return Roles{*batch, *time};
}

absl::StatusOr<std::vector<TensorType>> InferReverseSequence(const NodeTypes& types) {
  const InputRef x{"reverse_sequence", "x", types.inputs[0]};
  const InputRef lengths{"reverse_sequence", "lengths", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(x, 2));
  absl::StatusOr<Roles> roles = RolesOf(types);
  if (!roles.ok()) return roles.status();
  ESPALIER_RETURN_IF_ERROR(ExpectInteger(lengths));
  ESPALIER_RETURN_IF_ERROR(ExpectShape(lengths, {x.type.dims[roles->batch]},
                                       absl::StrCat("input 'x' has shape ", ToString(x.type.dims),
                                                    " and batch_axis is ", roles->batch)));
  return std::vector<TensorType>{x.type};
}

SplitRule SplitReverseSequence(const NodeTypes& types) {
  const Roles roles = *RolesOf(types);
  std::vector<bool> whole(types.inputs[0].dims.size(), false);
  whole[roles.time] = true;
  SplitRule rule = SplitAllBut(whole, types);
  rule.inputs[1] = {rule.inputs[0][roles.batch]};
  return rule;
}

}  // namespace

void RegisterReverseSequence(OpRegistry& registry) {
  OpDef def;
  def.name = "reverse_sequence";
  def.doc =
      "y = x, where the first lengths[b] elements along time_axis of every sequence b are in the "
      "opposite order";
  def.inputs = {{"x"}, {"lengths"}};
  def.attributes = {{.name = "batch_axis",
                     .kind = AttributeKind::kInt,
                     .default_value = int64_t{1},
                     .doc = "the sequences, from the end if negative"},
                    {.name = "time_axis",
                     .kind = AttributeKind::kInt,
                     .default_value = int64_t{0},
                     .doc = "the steps, from the end if negative"}};
  def.types = ElementTypes("FISB");
  def.onnx =
      OnnxForm{"ReverseSequence", {{"batch_axis", "batch_axis"}, {"time_axis", "time_axis"}}};
  def.infer = InferReverseSequence;
  def.split = SplitReverseSequence;
  def.gradient = Gradient{.needs_inputs = {1}, .differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
