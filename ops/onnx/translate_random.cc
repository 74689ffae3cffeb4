// Random numbers. Seeds in the file are not used: numbers follow from the job's seed, the node, the
// step and the element, whatever the plan.
#include "absl/strings/str_cat.h"
#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

// The type of the result, `fallback` if the node has no attribute dtype.
DType ResultType(Translator& t, DType fallback) {
  const int64_t wanted = t.Int("dtype", 0);
  if (wanted == 0) return fallback;
  const DType dtype = FromOnnx(static_cast<int>(wanted));
  if (dtype == DType::kInvalid) {
    t.Refuse(absl::StrCat("attribute 'dtype' is ", wanted, ", a type that is not taken"));
  }
  return dtype;
}

// A value of the shape of x through which no gradient flows.
ValueId ShapeOnly(Translator& t, ValueId x) {
  const bool differentiable = t.ok() && IsFloat(t.DTypeOf(x)) && !t.IsConstant(x);
  return differentiable ? t.Emit("equal", {x, x}) : x;
}

ValueId Draw(Translator& t, ValueId like, const std::string& distribution, double a, double b) {
  return t.Emit("random_like", {like}, {{"distribution", distribution}, {"a", a}, {"b", b}});
}

// `like` has the shape of the result.
void Random(Translator& t, ValueId like, bool normal, DType fallback) {
  const double a = normal ? t.Float("mean", 0) : t.Float("low", 0);
  const double b = normal ? t.Float("scale", 1) : t.Float("high", 1);
  const DType dtype = ResultType(t, fallback);
  if (!t.ok()) return;
  if (!IsFloat(dtype)) {
    return t.Refuse(absl::StrCat("draws ", Name(dtype), "; accepted: floating-point numbers"));
  }
  t.Return(t.Cast(Draw(t, like, normal ? "normal" : "uniform", a, b), dtype));
}

void RandomOfShape(Translator& t, bool normal) {
  if (t.Attribute("shape") == nullptr) return t.Fail("attribute 'shape' is missing");
  const Dims shape = t.Ints("shape", {});
  const ValueId like = t.Emit("fill", {}, {{"dims", shape}, {"dtype", std::string("bool")}});
  Random(t, like, normal, DType::kF32);
}

void RandomLike(Translator& t, bool normal) {
  const ValueId x = t.Required(0);
  Random(t, ShapeOnly(t, x), normal, t.DTypeOf(x));
}

// 1 with the probability that the input says.
void Bernoulli(Translator& t) {
  const ValueId p = t.Required(0);
  const DType dtype = ResultType(t, t.DTypeOf(p));
  const ValueId u = Draw(t, ShapeOnly(t, p), "uniform", 0, 1);
  t.Return(t.Cast(t.Binary("less", u, t.Cast(p, DType::kF32)), dtype));
}

}  // namespace

void RegisterRandomTranslations(TranslationTable& table) {
  table["Bernoulli"] = Bernoulli;
  table["RandomNormal"] = [](Translator& t) { RandomOfShape(t, true); };
  table["RandomNormalLike"] = [](Translator& t) { RandomLike(t, true); };
  table["RandomUniform"] = [](Translator& t) { RandomOfShape(t, false); };
  table["RandomUniformLike"] = [](Translator& t) { RandomLike(t, false); };
}

}  // namespace espalier::onnx_import
