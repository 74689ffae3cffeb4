// Arithmetic, comparisons and activations without an OnnxForm.
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

void Cast(Translator& t) {
  const DType to = FromOnnx(static_cast<int>(t.Int("to", 0)));
  if (to == DType::kInvalid) {
    t.Refuse(
        absl::StrCat("attribute 'to' names element type ", t.Int("to", 0), ", which is not taken"));
    return;
  }
  t.Return(t.Cast(t.Required(0), to));
}

void CastLike(Translator& t) {
  const ValueId x = t.Required(0), like = t.Required(1);
  if (t.ok()) t.Return(t.Cast(x, t.DTypeOf(like)));
}

std::vector<int64_t> Quotients(Translator& t, const std::vector<int64_t>& x,
                               const std::vector<int64_t>& y) {
  std::vector<int64_t> quotients;
  for (size_t i = 0; i < x.size(); ++i) {
    if (y[i] == 0) {
      t.Fail("divides an integer by zero");
      return {};
    }
    quotients.push_back(y[i] == -1 ? static_cast<int64_t>(0 - static_cast<uint64_t>(x[i]))
                                   : x[i] / y[i]);
  }
  return quotients;
}

// Integer division truncates, and is supported only if both operands are known: models compute
// shapes with it.
void Div(Translator& t) {
  ValueId a = t.Required(0), b = t.Required(1);
  if (!t.ok()) return;
  if (!IsInteger(t.DTypeOf(a))) {
    t.Return(t.Binary("divide", a, b));
    return;
  }
  const bool sizes = t.DTypeOf(a) == DType::kI64 || t.DTypeOf(a) == DType::kI32;
  if (!sizes) return t.Refuse("divides small integers, which are no sizes");
  Dims dims = t.DimsOf(a).size() > t.DimsOf(b).size() ? t.DimsOf(a) : t.DimsOf(b);
  a = t.Expand(a, dims);
  b = t.Expand(b, t.DimsOf(a));
  a = t.Expand(a, t.DimsOf(b));
  const std::vector<int64_t> x = t.KnownInts(a, "the dividend of integers"),
                             y = t.KnownInts(b, "the divisor of integers");
  if (!t.ok()) return;
  const std::vector<int64_t> quotients = Quotients(t, x, y);
  if (!t.ok()) return;
  const std::vector<int64_t> at_one = Quotients(t, t.IntsAtBatchOne(a, x), t.IntsAtBatchOne(b, y));
  // 10 / N is 0 for every large batch.
  if (!t.ok() || (t.DependsOnBatch(b) && at_one != quotients)) {
    return t.Refuse("divides an integer by a number that depends on the batch size");
  }
  t.Return(t.Cast(t.Integers(quotients, at_one, t.DimsOf(a)), t.DTypeOf(a)));
}

// The powers that exporters spell out for norms and means, without the general function.
void Pow(Translator& t) {
  const ValueId x = t.Required(0), exponent = t.Required(1);
  if (!t.ok()) return;
  const bool one = NumElements(t.DimsOf(exponent)) == 1 && t.RankOf(exponent) <= t.RankOf(x);
  if (one && IsFloat(t.DTypeOf(x)) && t.IsKnown(exponent)) {
    const double p = t.KnownNumbers(exponent, "the exponent")[0];
    if (p == 1) return t.Return(x);
    if (p == 2) return t.Return(t.Binary("multiply", x, x));
    if (p == 3) return t.Return(t.Binary("multiply", t.Binary("multiply", x, x), x));
    if (p == 0.5) return t.Return(t.Emit("sqrt", {x}));
    if (p == -0.5) return t.Return(t.Emit("rsqrt", {x}));
    if (p == -1) return t.Return(t.Emit("reciprocal", {x}));
    return t.Return(t.Emit("power_scalar", {x}, {{"value", p}}));
  }
  // The result has the type of the base.
  if (IsInteger(t.DTypeOf(x)) && IsFloat(t.DTypeOf(exponent))) {
    const ValueId y = t.Binary("power", t.Cast(x, t.DTypeOf(exponent)), exponent);
    t.Return(t.Cast(y, t.DTypeOf(x)));
    return;
  }
  t.Return(t.Binary("power", x, t.Cast(exponent, t.DTypeOf(x))));
}

void Mod(Translator& t) {
  t.Return(t.Emit("modulo", {t.Required(0), t.Required(1)}, {{"fmod", t.Bool("fmod")}}));
}

ValueId Chain(Translator& t, const std::string& op) {
  ValueId result = t.Required(0);
  for (int i = 1; i < t.NumInputs(); ++i) result = t.Binary(op, result, t.Required(i));
  return result;
}

void Mean(Translator& t) {
  const ValueId sum = Chain(t, "add");
  if (t.ok())
    t.Return(t.NumInputs() == 1 ? sum
                                : t.Binary("divide", sum, static_cast<double>(t.NumInputs())));
}

void Clip(Translator& t) {
  ValueId x = t.Required(0);
  if (!t.ok()) return;
  const bool inputs = t.opset() >= 11;
  const bool has[] = {inputs ? t.HasInput(1) : t.Attribute("min") != nullptr,
                      inputs ? t.HasInput(2) : t.Attribute("max") != nullptr};
  const char* names[] = {"min", "max"};
  Attributes attributes;
  double bounds[2] = {-INFINITY, INFINITY};
  bool known = t.DTypeOf(x) != DType::kI64;  // bounds that a double cannot hold
  for (int i = 0; i < 2 && t.ok(); ++i) {
    if (!has[i]) continue;
    if (inputs && !t.IsKnown(t.Input(i + 1))) {
      known = false;
      continue;
    }
    bounds[i] = inputs ? t.ConstantNumber(i + 1) : t.Float(names[i], 0);
    attributes.Set(names[i], bounds[i]);
  }
  if (!t.ok()) return;
  // With min > max every element becomes max.
  if (known && bounds[0] <= bounds[1]) {
    t.Return(has[0] || has[1] ? t.Emit("clip", {x}, std::move(attributes)) : x);
    return;
  }
  for (int i = 0; i < 2; ++i) {
    if (!has[i]) continue;
    const ValueId bound = inputs ? t.Input(i + 1) : t.Scalar(bounds[i], t.DTypeOf(x));
    x = t.Binary(i == 0 ? "maximum" : "minimum", x, bound);
  }
  t.Return(x);
}

void Gelu(Translator& t) {
  t.Return(t.Emit("gelu", {t.Required(0)}, {{"approximate", t.String("approximate", "none")}}));
}

// Before opset 13 softmax flattens the dimensions from `axis` on.
void SoftmaxLike(Translator& t, const std::string& op) {
  const ValueId x = t.Required(0);
  if (!t.ok()) return;
  const int rank = t.RankOf(x);
  const bool old = t.opset() < 13;
  const int64_t given = t.Int("axis", old ? 1 : -1);
  if (old && given == rank) return t.Fail("axis is the rank: there is nothing to normalize");
  const int64_t axis = t.Axis(given, rank);
  if (!old || axis == rank - 1 || !t.ok()) {
    t.Return(t.Emit(op, {x}, {{"axis", axis}}));
    return;
  }
  const Dims dims = t.DimsOf(x);
  Dims flat(dims.begin(), dims.begin() + axis);
  flat.push_back(NumElements({dims.begin() + axis, dims.end()}));
  const ValueId y = t.Emit(op, {t.Reshape(x, flat)}, {{"axis", axis}});
  t.Return(t.Reshape(y, dims));
}

void Hardmax(Translator& t) {
  const ValueId x = t.Required(0);
  if (!t.ok()) return;
  const Dims dims = t.DimsOf(x);
  const int rank = t.RankOf(x);
  const bool old = t.opset() < 13;
  const int64_t axis = t.Axis(t.Int("axis", old ? 1 : -1), rank);
  if (!t.ok()) return;
  Dims flat = dims;
  if (old) {
    flat = Dims(dims.begin(), dims.begin() + axis);
    flat.push_back(NumElements({dims.begin() + axis, dims.end()}));
  }
  if (t.IsSymbolicBatch(flat[axis])) return t.Refuse("takes the largest over the batch");
  const ValueId largest =
      t.Emit("arg_max", {t.Reshape(x, flat)}, {{"axis", axis}, {"keepdims", false}});
  const ValueId hot = t.Emit("one_hot", {largest},
                             {{"depth", flat[axis]},
                              {"axis", axis},
                              {"on", 1.0},
                              {"off", 0.0},
                              {"dtype", std::string(Name(t.DTypeOf(x)))}});
  t.Return(t.Reshape(hot, dims));
}

}  // namespace

void RegisterElementwiseTranslations(TranslationTable& table) {
  const auto chain = [&](const std::string& onnx, const std::string& op) {
    table[onnx] = [op](Translator& t) { t.Return(Chain(t, op)); };
  };
  chain("Max", "maximum");
  chain("Min", "minimum");
  chain("Sum", "add");
  table["Cast"] = Cast;
  table["CastLike"] = CastLike;
  table["Clip"] = Clip;
  table["Div"] = Div;
  table["Gelu"] = Gelu;
  table["Hardmax"] = Hardmax;
  table["LogSoftmax"] = [](Translator& t) { SoftmaxLike(t, "log_softmax"); };
  table["Mean"] = Mean;
  table["Mod"] = Mod;
  table["Pow"] = Pow;
  table["Softmax"] = [](Translator& t) { SoftmaxLike(t, "softmax"); };
}

}  // namespace espalier::onnx_import
