// What LoRA adapters (Hu et al. 2021) add to a linear layer, where each row has its own adapter or
// none.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

constexpr char kLoraLinear[] = "lora_linear";

enum Input { kX, kA, kB, kAdapter };

absl::StatusOr<std::vector<TensorType>> InferLoraLinear(const NodeTypes& types) {
  const auto input = [&](int i, const char* name) {
    return InputRef{kLoraLinear, name, types.inputs[i]};
  };
  const InputRef x = input(kX, "x"), a = input(kA, "a"), b = input(kB, "b");
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  ESPALIER_RETURN_IF_ERROR(ExpectRank(x, 2));
  const int64_t rows = x.type.dims[0], in = x.type.dims[1];
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(a, x));
  ESPALIER_RETURN_IF_ERROR(
      ExpectShape(a, {"adapters", "rank", in}, absl::StrCat("'x' ends in ", in)));
  const int64_t adapters = a.type.dims[0], rank = a.type.dims[1];
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(b, x));
  ESPALIER_RETURN_IF_ERROR(
      ExpectShape(b, {adapters, "out", rank},
                  absl::StrCat("'a' holds ", adapters, " adapters of ", rank, " rows each")));
  const InputRef adapter = input(kAdapter, "adapter");
  ESPALIER_RETURN_IF_ERROR(ExpectDType(adapter, {DType::kI32}));
  ESPALIER_RETURN_IF_ERROR(ExpectShape(adapter, {rows}, absl::StrCat("'x' has ", rows, " rows")));
  return std::vector<TensorType>{{x.type.dtype, {rows, b.type.dims[1]}}};
}

SplitRule SplitLoraLinear(const NodeTypes& types) {
  constexpr int kSample = 0, kOut = 1, kIn = 2;
  SplitRule rule;
  rule.axes = {{"sample", AxisKind::kSample, types.inputs[kX].dims[0]},
               {"out", AxisKind::kParameter, types.inputs[kB].dims[1]},
               {"in", AxisKind::kReduction, types.inputs[kX].dims[1]}};
  rule.inputs = {
      {kSample, kIn}, {kNotSplit, kNotSplit, kIn}, {kNotSplit, kOut, kNotSplit}, {kSample}};
  rule.outputs = {{kSample, kOut}};
  return rule;
}

}  // namespace

void RegisterLoraLinear(OpRegistry& registry) {
  OpDef def;
  def.name = kLoraLinear;
  def.doc =
      "x[T, in], a[n, r, in], b[n, out, r], adapter[T] (i32) -> y[T, out]: row t of y is "
      "b[adapter[t]] "
      "(a[adapter[t]] x[t]), and 0 where adapter[t] is -1. No gradient";
  def.inputs = {{"x"}, {"a"}, {"b"}, {.name = "adapter", .own_type = true}};
  def.precision = Precision::kNarrow;
  def.infer = InferLoraLinear;
  def.split = SplitLoraLinear;
  def.cost = [](const NodeTypes& types) {
    const TensorType &x = types.inputs[kX], &b = types.inputs[kB];
    const double rows = static_cast<double>(x.dims[0]);
    const double matrices = static_cast<double>(b.dims[2]) *
                            (static_cast<double>(x.dims[1]) + static_cast<double>(b.dims[1]));
    // Reads only the adapters of the rows.
    const double read = std::min(static_cast<double>(b.dims[0]), rows) * matrices *
                        static_cast<double>(SizeOf(x.dtype));
    return Cost{2 * rows * matrices, read + static_cast<double>(x.bytes()) +
                                         static_cast<double>(types.outputs[0].bytes())};
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
