// Quantized tensors, by the arithmetic that defines them: integers held in f32, which is exact
// below 2^24.
#include "absl/strings/str_cat.h"
#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

constexpr int64_t kExactSums = 258;  // products of two bytes whose sum stays below 2^24

// Expands a scale or zero point (per tensor, per index of `axis`, or per block along it) to x's
// shape.
ValueId BroadcastScale(Translator& t, ValueId v, ValueId x, int64_t axis, int64_t block) {
  if (!t.ok() || NumElements(t.DimsOf(v)) == 1) return t.ok() ? t.Reshape(v, {}) : v;
  const Dims dims = t.DimsOf(x);
  axis = t.Axis(axis, t.RankOf(x));
  if (!t.ok()) return v;
  if (block == 0) {
    Dims shape(dims.size(), 1);
    shape[axis] = dims[axis];
    return t.Reshape(v, shape);
  }
  Dims blocks = t.DimsOf(v);
  if (blocks.size() != dims.size() || blocks[axis] * block != dims[axis]) {
    t.Refuse(absl::StrCat("has blocks of ", block, " in a dimension of ", dims[axis],
                          "; taken are those that fill it"));
    return v;
  }
  Dims repeated = blocks;
  repeated.insert(repeated.begin() + axis + 1, block);
  blocks.insert(blocks.begin() + axis + 1, 1);
  return t.Reshape(t.Expand(t.Reshape(v, blocks), repeated), dims);
}

ValueId ZeroPoint(Translator& t, int index, ValueId x, int64_t axis, int64_t block) {
  return t.HasInput(index) ? BroadcastScale(t, t.Cast(t.Input(index), DType::kF32), x, axis, block)
                           : kNoValue;
}

ValueId Quantized(Translator& t, ValueId x, ValueId scale, ValueId zero, DType to) {
  ValueId y = t.Emit("round", {t.Binary("divide", x, scale)});
  if (zero != kNoValue) y = t.Binary("add", y, zero);
  const bool is_signed = to == DType::kI8;
  return t.Cast(
      t.Emit("clip", {y}, {{"min", is_signed ? -128.0 : 0.0}, {"max", is_signed ? 127.0 : 255.0}}),
      to);
}

// x - zero, as f32.
ValueId Centred(Translator& t, ValueId x, ValueId zero) {
  x = t.Cast(x, DType::kF32);
  return zero == kNoValue ? x : t.Binary("subtract", x, zero);
}

bool IsByte(DType type) { return type == DType::kI8 || type == DType::kU8; }

void QuantizeLinear(Translator& t) {
  const ValueId x = t.Required(0), scale = t.Required(1);
  DType to = t.HasInput(2) ? t.DTypeOf(t.Input(2)) : DType::kU8;
  if (t.Int("output_dtype", 0) != 0) to = FromOnnx(static_cast<int>(t.Int("output_dtype", 0)));
  if (!t.ok()) return;
  if (!IsByte(to)) return t.Refuse("gives another type than int8 and uint8");
  const int64_t axis = t.Int("axis", 1), block = t.Int("block_size", 0);
  const ValueId wide = t.Cast(x, DType::kF32), zero = ZeroPoint(t, 2, x, axis, block);
  t.Return(
      Quantized(t, wide, BroadcastScale(t, t.Cast(scale, DType::kF32), x, axis, block), zero, to));
}

void DequantizeLinear(Translator& t) {
  const ValueId x = t.Required(0), scale = t.Required(1);
  const int64_t axis = t.Int("axis", 1), block = t.Int("block_size", 0);
  const ValueId centred = Centred(t, x, ZeroPoint(t, 2, x, axis, block));
  const ValueId y =
      t.Binary("multiply", centred, BroadcastScale(t, t.Cast(scale, DType::kF32), x, axis, block));
  t.Return(t.Cast(y, t.DTypeOf(scale)));
}

void DynamicQuantizeLinear(Translator& t) {
  const ValueId x = t.Required(0);
  if (!t.ok()) return;
  const ValueId zero = t.Scalar(0, DType::kF32);
  const ValueId most = t.Binary("maximum", t.Reduce("reduce_max", x, {}, false), zero),
                least = t.Binary("minimum", t.Reduce("reduce_min", x, {}, false), zero);
  const ValueId scale = t.Binary("divide", t.Binary("subtract", most, least), 255.0);
  const ValueId point =
      t.Emit("round", {t.Emit("clip", {t.Binary("divide", t.Emit("neg", {least}), scale)},
                              {{"min", 0.0}, {"max", 255.0}})});
  t.Return(Quantized(t, x, scale, point, DType::kU8));
  t.Return(scale, 1);
  t.Return(t.Cast(point, DType::kU8), 2);
}

// The factors of an integer product; sums of `terms` products must be exact in f32.
bool ExpectExact(Translator& t, ValueId a, ValueId b, int64_t terms) {
  if (!t.ok()) return false;
  if (!IsByte(t.DTypeOf(a)) || !IsByte(t.DTypeOf(b))) {
    t.Fail("takes int8 and uint8");
  } else if (terms > kExactSums) {
    t.Refuse(absl::StrCat("adds up ", terms, " products; up to ", kExactSums, " are exact"));
  }
  return t.ok();
}

// Zero points of the rows of `a`.
ValueId RowZero(Translator& t, int index, ValueId a) {
  if (!t.HasInput(index)) return kNoValue;
  const ValueId zero = t.Cast(t.Input(index), DType::kF32);
  if (NumElements(t.DimsOf(zero)) == 1) return t.Reshape(zero, {});
  if (t.RankOf(zero) == 1) return BroadcastScale(t, zero, a, t.RankOf(a) - 2, 0);
  return zero;
}

void MatMulInteger(Translator& t) {
  const ValueId a = t.Required(0), b = t.Required(1);
  if (!t.ok() || t.RankOf(a) < 1 || !ExpectExact(t, a, b, t.DimsOf(a).back())) return;
  const ValueId y =
      t.Emit("matmul", {Centred(t, a, RowZero(t, 2, a)), Centred(t, b, ZeroPoint(t, 3, b, -1, 0))});
  t.Return(t.Cast(y, DType::kI32));
}

void QLinearMatMul(Translator& t) {
  const ValueId a = t.Required(0), b = t.Required(3);
  if (!t.ok() || t.RankOf(a) < 1 || !ExpectExact(t, a, b, t.DimsOf(a).back())) return;
  for (int i : {1, 4, 6}) {
    const ValueId scale = t.Required(i);
    if (t.ok() && NumElements(t.DimsOf(scale)) != 1) return t.Refuse("takes one scale per matrix");
    if (t.ok() && t.DTypeOf(scale) != DType::kF32) return t.Refuse("takes scales of type float");
  }
  const ValueId y =
      t.Emit("matmul", {Centred(t, a, RowZero(t, 2, a)), Centred(t, b, ZeroPoint(t, 5, b, -1, 0))});
  const auto scale = [&](int i) { return t.Reshape(t.Input(i), {}); };
  if (!t.ok()) return;
  if (t.DTypeOf(t.Required(7)) != DType::kU8) {
    return t.Refuse(
        "gives int8, where the definition (saturate) and the ONNX project's tests (wrap around) "
        "disagree; taken is uint8");
  }
  const ValueId real = t.Binary("multiply", y, t.Binary("multiply", scale(1), scale(4)));
  t.Return(Quantized(t, real, scale(6), ZeroPoint(t, 7, y, -1, 0), t.DTypeOf(t.Required(7))));
}

}  // namespace

void RegisterQuantizeTranslations(TranslationTable& table) {
  table["DequantizeLinear"] = DequantizeLinear;
  table["DynamicQuantizeLinear"] = DynamicQuantizeLinear;
  table["MatMulInteger"] = MatMulInteger;
  table["QLinearMatMul"] = QLinearMatMul;
  table["QuantizeLinear"] = QuantizeLinear;
}

}  // namespace espalier::onnx_import
