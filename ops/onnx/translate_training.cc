// Optimizers of the domain ai.onnx.preview.training: one step in basic operators.
#include "absl/strings/str_cat.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

// Inputs: rate, step number, then `groups` groups of one value per tensor. `f` takes a tensor's
// values and returns the node's outputs for it, in the same order of groups.
template <typename Function>
void ForEachTensor(Translator& t, int groups, int answers, Function f) {
  const int tensors = (t.NumInputs() - 2) / groups;
  if (t.NumInputs() != 2 + groups * tensors || tensors == 0) {
    return t.Fail(absl::StrCat("has ", t.NumInputs(), " inputs, expected 2 and ", groups,
                               " for each tensor"));
  }
  const ValueId rate = t.Required(0), step = t.Required(1);
  for (int i = 0; i < tensors && t.ok(); ++i) {
    std::vector<ValueId> values;
    for (int g = 0; g < groups; ++g) values.push_back(t.Required(2 + g * tensors + i));
    if (!t.ok()) return;
    const std::vector<ValueId> results = f(rate, t.Cast(step, t.DTypeOf(values[0])), values);
    for (int k = 0; k < answers; ++k) t.Return(results[k], k * tensors + i);
  }
}

ValueId Add(Translator& t, ValueId a, ValueId b) { return t.Binary("add", a, b); }
ValueId Times(Translator& t, ValueId a, ValueId b) { return t.Binary("multiply", a, b); }

// Gradient with the L2 penalty.
ValueId Penalised(Translator& t, ValueId gradient, ValueId x) {
  const double norm = t.Float("norm_coefficient", 0);
  return norm == 0 ? gradient : Add(t, t.Binary("multiply", x, norm), gradient);
}

void Adagrad(Translator& t) {
  const double decay = t.Float("decay_factor", 0), epsilon = t.Float("epsilon", 1e-6);
  ForEachTensor(t, 3, 2, [&](ValueId rate, ValueId step, const std::vector<ValueId>& v) {
    const ValueId slowed =
        t.Binary("divide", rate, t.Binary("add", t.Binary("multiply", step, decay), 1.0));
    const ValueId g = Penalised(t, v[1], v[0]);
    const ValueId sum = Add(t, v[2], Times(t, g, g));
    const ValueId root = t.Binary("add", t.Emit("sqrt", {sum}), epsilon);
    const ValueId move = t.Binary("divide", Times(t, slowed, g), root);
    return std::vector<ValueId>{t.Binary("subtract", v[0], move), sum};
  });
}

void Adam(Translator& t) {
  if (t.Attribute("epsilon") == nullptr) {
    return t.Refuse(
        "attribute 'epsilon' must be given: its default in the definition and in the ONNX "
        "project's tests differ");
  }
  const double alpha = t.Float("alpha", 0.9), beta = t.Float("beta", 0.999),
               epsilon = t.Float("epsilon", 1e-6);
  const double after = t.Float("norm_coefficient_post", 0);
  ForEachTensor(t, 4, 3, [&](ValueId rate, ValueId step, const std::vector<ValueId>& v) {
    const ValueId g = Penalised(t, v[1], v[0]);
    const auto mixed = [&](ValueId old, ValueId now, double weight) {
      return Add(t, t.Binary("multiply", old, weight), t.Binary("multiply", now, 1 - weight));
    };
    const ValueId m = mixed(v[2], g, alpha), s = mixed(v[3], Times(t, g, g), beta);
    const auto bias = [&](double weight) {  // 1 - weight^step
      const ValueId power = t.Binary("power", t.Scalar(weight, t.DTypeOf(v[0])), step);
      return t.Binary("subtract", t.Scalar(1, t.DTypeOf(v[0])), power);
    };
    const ValueId corrected =
        t.Binary("divide", Times(t, rate, t.Emit("sqrt", {bias(beta)})), bias(alpha));
    // No correction at step 0.
    const ValueId first = t.Binary("greater", step, 0.0);
    const ValueId speed = t.Emit("where", {first, corrected, rate});
    const ValueId root = t.Binary("add", t.Emit("sqrt", {s}), epsilon);
    ValueId x = t.Binary("subtract", v[0], t.Binary("divide", Times(t, speed, m), root));
    if (after != 0) x = t.Binary("multiply", x, 1 - after);
    return std::vector<ValueId>{x, m, s};
  });
}

void Momentum(Translator& t) {
  const double alpha = t.Float("alpha", 0), beta = t.Float("beta", 0);
  const std::string mode = t.String("mode", "standard");
  if (mode != "standard" && mode != "nesterov") {
    return t.Fail(absl::StrCat("attribute 'mode' is '", mode, "', expected standard or nesterov"));
  }
  ForEachTensor(t, 3, 2, [&](ValueId rate, ValueId step, const std::vector<ValueId>& v) {
    const ValueId g = Penalised(t, v[1], v[0]);
    // beta from the second step on.
    const ValueId later = t.Binary("greater", step, 0.0);
    const ValueId weight =
        t.Emit("where", {later, t.Scalar(beta, t.DTypeOf(v[0])), t.Scalar(1, t.DTypeOf(v[0]))});
    const ValueId velocity = Add(t, t.Binary("multiply", v[2], alpha), Times(t, weight, g));
    const ValueId move =
        mode == "standard" ? velocity : Add(t, g, t.Binary("multiply", velocity, alpha));
    return std::vector<ValueId>{t.Binary("subtract", v[0], Times(t, rate, move)), velocity};
  });
}

}  // namespace

void RegisterTrainingTranslations(TranslationTable& table) {
  table["ai.onnx.preview.training.Adagrad"] = Adagrad;
  table["ai.onnx.preview.training.Adam"] = Adam;
  table["ai.onnx.preview.training.Momentum"] = Momentum;
}

}  // namespace espalier::onnx_import
