// Arithmetic, activations and reductions.
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

void Cast(Translator& t) {
  const ValueId x = t.Input(0);
  const DType to = FromOnnx(static_cast<int>(t.Int("to", 0)));
  if (to == DType::kInvalid) {
    t.Refuse(
        absl::StrCat("attribute 'to' names element type ", t.Int("to", 0), ", which is not taken"));
    return;
  }
  t.Return(t.Emit("cast", {x}, {{"to", std::string(Name(to))}}));
}

void Softmax(Translator& t) {
  const ValueId x = t.Input(0);
  t.Return(t.Emit("softmax", {x}, {{"axis", t.Axis(t.Int("axis", -1), t.RankOf(x))}}));
}

void Gelu(Translator& t) {
  t.Return(t.Emit("gelu", {t.Input(0)}, {{"approximate", t.String("approximate", "none")}}));
}

void Reduce(Translator& t, const std::string& op) {
  const ValueId x = t.Input(0);
  // The axes became an input in opset 13 for ReduceSum, in 18 for ReduceMean.
  std::vector<int64_t> axes =
      t.HasInput(1) ? t.ConstantInts(1) : t.Ints("axes", std::vector<int64_t>{});
  if (axes.empty() && t.Int("noop_with_empty_axes", 0) != 0) {
    t.Return(x);
    return;
  }
  for (int64_t& axis : axes) axis = t.Axis(axis, t.RankOf(x));
  t.Return(t.Emit(op, {x}, {{"axes", axes}, {"keepdims", t.Int("keepdims", 1) != 0}}));
}

// The powers that exporters write out for norms and means.
void Pow(Translator& t) {
  const ValueId x = t.Input(0);
  const double exponent = t.ConstantNumber(1);
  if (!t.ok()) return;
  if (exponent == 1) {
    t.Return(x);
  } else if (exponent == 2) {
    t.Return(t.Emit("multiply", {x, x}));
  } else if (exponent == 3) {
    t.Return(t.Emit("multiply", {t.Emit("multiply", {x, x}), x}));
  } else if (exponent == 0.5) {
    t.Return(t.Emit("sqrt", {x}));
  } else {
    t.Refuse(absl::StrCat("exponent ", exponent, " is not taken; taken are 0.5, 1, 2 and 3"));
  }
}

void Sum(Translator& t) {
  ValueId sum = t.Input(0);
  for (int i = 1; i < t.node().input_size(); ++i) sum = t.Emit("add", {sum, t.Input(i)});
  t.Return(sum);
}

}  // namespace

void RegisterArithmetic(TranslationTable* table) {
  const auto add = [&](const std::string& onnx, const std::string& op, int inputs) {
    (*table)[onnx] = [op, inputs](Translator& t) {
      std::vector<ValueId> operands;
      for (int i = 0; i < inputs; ++i) {
        if (t.ok() && !t.HasInput(i)) t.Fail(absl::StrCat("input ", i, " is missing"));
        operands.push_back(t.Input(i));
      }
      t.Return(t.Emit(op, operands));
    };
  };
  add("Add", "add", 2);
  add("Div", "divide", 2);
  add("Exp", "exp", 1);
  add("MatMul", "matmul", 2);
  add("Mul", "multiply", 2);
  add("Relu", "relu", 1);
  add("Sigmoid", "sigmoid", 1);
  add("Sqrt", "sqrt", 1);
  add("Sub", "subtract", 2);
  add("Tanh", "tanh", 1);
  (*table)["Cast"] = Cast;
  (*table)["Gelu"] = Gelu;
  (*table)["Pow"] = Pow;
  (*table)["ReduceMean"] = [](Translator& t) { Reduce(t, "reduce_mean"); };
  (*table)["ReduceSum"] = [](Translator& t) { Reduce(t, "reduce_sum"); };
  (*table)["Softmax"] = Softmax;
  (*table)["Sum"] = Sum;
}

}  // namespace espalier::onnx_import
