// Reductions, and norms along an axis.
#include "absl/strings/str_cat.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

// The axes became an input in opset 13 for ReduceSum, in 18 for the others.
void Reduce(Translator& t, const std::string& op) {
  const ValueId x = t.Required(0);
  if (!t.ok()) return;
  const std::vector<int64_t> axes = t.Axes(t.IntsOf("axes", 1), t.RankOf(x));
  if (axes.empty() && t.Bool("noop_with_empty_axes")) return t.Return(x);
  // Over no dimensions each element is its own sum.
  t.Return(t.Reduce(op, x, axes, t.Bool("keepdims", true)));
}

void Arg(Translator& t, const std::string& op) {
  const ValueId x = t.Required(0);
  t.Return(t.Emit(op, {x},
                  {{"axis", t.Axis(t.Int("axis", 0), t.RankOf(x))},
                   {"keepdims", t.Bool("keepdims", true)},
                   {"select_last", t.Bool("select_last_index")}}));
}

void CumSum(Translator& t) {
  const ValueId x = t.Required(0);
  const std::vector<int64_t> axis = t.ConstantInts(1);
  if (t.ok() && axis.size() != 1) t.Fail("input 1 (axis) must be one integer");
  if (!t.ok()) return;
  t.Return(t.Emit("cumsum", {x},
                  {{"axis", t.Axis(axis[0], t.RankOf(x))},
                   {"exclusive", t.Bool("exclusive")},
                   {"reverse", t.Bool("reverse")}}));
}

void LpNormalization(Translator& t) {
  const ValueId x = t.Required(0);
  const int64_t p = t.Int("p", 2), axis = t.Axis(t.Int("axis", -1), t.RankOf(x));
  if (p != 1 && p != 2) return t.Fail(absl::StrCat("attribute 'p' is ", p, ", expected 1 or 2"));
  const ValueId norm = t.Reduce(p == 1 ? "reduce_l1" : "reduce_l2", x, {axis}, true);
  t.Return(t.Binary("divide", x, norm));
}

void MeanVarianceNormalization(Translator& t) {
  const ValueId x = t.Required(0);
  const std::vector<int64_t> axes = t.Axes(t.Ints("axes", {0, 2, 3}), t.RankOf(x));
  const ValueId centred = t.Binary("subtract", x, t.Reduce("reduce_mean", x, axes, true));
  const ValueId variance =
      t.Reduce("reduce_mean", t.Binary("multiply", centred, centred), axes, true);
  const ValueId deviation = t.Binary("add", t.Emit("sqrt", {variance}), 1e-9);
  t.Return(t.Binary("divide", centred, deviation));
}

}  // namespace

void RegisterReduceTranslations(TranslationTable& table) {
  const auto add = [&](const std::string& onnx, const std::string& op) {
    table[onnx] = [op](Translator& t) { Reduce(t, op); };
  };
  add("ReduceL1", "reduce_l1");
  add("ReduceL2", "reduce_l2");
  add("ReduceLogSum", "reduce_log_sum");
  add("ReduceLogSumExp", "reduce_log_sum_exp");
  add("ReduceMax", "reduce_max");
  add("ReduceMean", "reduce_mean");
  add("ReduceMin", "reduce_min");
  add("ReduceProd", "reduce_prod");
  add("ReduceSum", "reduce_sum");
  add("ReduceSumSquare", "reduce_sum_square");
  table["ArgMax"] = [](Translator& t) { Arg(t, "arg_max"); };
  table["ArgMin"] = [](Translator& t) { Arg(t, "arg_min"); };
  table["CumSum"] = CumSum;
  table["LpNormalization"] = LpNormalization;
  table["MeanVarianceNormalization"] = MeanVarianceNormalization;
}

}  // namespace espalier::onnx_import
