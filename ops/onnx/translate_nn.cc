// Layers: convolution, pooling, normalisation, Gemm, dropout.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

// Padding in ONNX order [top, left, bottom, right].
std::vector<int64_t> Pads(Translator& t, const std::vector<int64_t>& kernel,
                          const std::vector<int64_t>& strides,
                          const std::vector<int64_t>& dilations, const Dims& x) {
  const std::string mode = t.String("auto_pad", "NOTSET");
  if (mode == "NOTSET") return t.Ints("pads", {0, 0, 0, 0});
  if (mode == "VALID") return {0, 0, 0, 0};
  if (mode != "SAME_UPPER" && mode != "SAME_LOWER") {
    t.Fail(absl::StrCat("attribute 'auto_pad' is '", mode,
                        "', expected NOTSET, VALID, SAME_UPPER or SAME_LOWER"));
    return {};
  }
  std::vector<int64_t> pads(4, 0);
  for (int d = 0; d < 2; ++d) {
    const int64_t out = (x[d + 2] + strides[d] - 1) / strides[d];
    const int64_t total = std::max<int64_t>(
        0, (out - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 - x[d + 2]);
    pads[d] = mode == "SAME_UPPER" ? total / 2 : (total + 1) / 2;
    pads[d + 2] = total - pads[d];
  }
  return pads;
}

bool TwoDimensional(Translator& t, ValueId x) {
  if (t.ok() && t.RankOf(x) != 4) {
    t.Refuse(
        absl::StrCat("takes images [N, C, H, W]; its input has shape ", ToString(t.DimsOf(x))));
  }
  return t.ok();
}

bool Positive(Translator& t, const char* name, const std::vector<int64_t>& values, size_t count) {
  const bool good = values.size() == count &&
                    std::all_of(values.begin(), values.end(), [](int64_t v) { return v > 0; });
  if (!good) t.Fail(absl::StrCat("attribute '", name, "' must be ", count, " positive integers"));
  return good && t.ok();
}

void Conv(Translator& t) {
  const ValueId x = t.Input(0), weight = t.Input(1), bias = t.Input(2);
  if (!TwoDimensional(t, x) || !TwoDimensional(t, weight)) return;
  const Dims& w = t.DimsOf(weight);
  const std::vector<int64_t> kernel = t.Ints("kernel_shape", {w[2], w[3]});
  const std::vector<int64_t> strides = t.Ints("strides", {1, 1});
  const std::vector<int64_t> dilations = t.Ints("dilations", {1, 1});
  if (!Positive(t, "kernel_shape", kernel, 2) || !Positive(t, "strides", strides, 2) ||
      !Positive(t, "dilations", dilations, 2)) {
    return;
  }
  if (kernel[0] != w[2] || kernel[1] != w[3]) {
    t.Fail(absl::StrCat("attribute 'kernel_shape' does not fit the weight of shape ", ToString(w)));
    return;
  }
  t.Return(t.Emit("conv2d", {x, weight, bias},
                  {{"strides", strides},
                   {"pads", Pads(t, kernel, strides, dilations, t.DimsOf(x))},
                   {"dilations", dilations},
                   {"groups", t.Int("group", 1)}}));
}

void Pool(Translator& t, const std::string& kind) {
  const ValueId x = t.Input(0);
  if (!TwoDimensional(t, x)) return;
  const std::vector<int64_t> kernel = t.Ints("kernel_shape", {});
  const std::vector<int64_t> strides = t.Ints("strides", {1, 1});
  if (!Positive(t, "kernel_shape", kernel, 2) || !Positive(t, "strides", strides, 2)) return;
  if (t.Ints("dilations", {1, 1}) != std::vector<int64_t>{1, 1}) {
    t.Refuse("dilated pooling is not taken");
    return;
  }
  if (t.node().output_size() > 1 && !t.node().output(1).empty()) {
    t.Refuse("the second output (indices) is not taken");
    return;
  }
  t.Return(t.Emit("pool2d", {x},
                  {{"kind", kind},
                   {"kernel", kernel},
                   {"strides", strides},
                   {"pads", Pads(t, kernel, strides, {1, 1}, t.DimsOf(x))},
                   {"count_include_pad", t.Int("count_include_pad", 0) != 0},
                   {"ceil_mode", t.Int("ceil_mode", 0) != 0}}));
}

void GlobalAveragePool(Translator& t) {
  const ValueId x = t.Input(0);
  if (!TwoDimensional(t, x)) return;
  t.Return(t.Emit("reduce_mean", {x}, {{"axes", std::vector<int64_t>{2, 3}}, {"keepdims", true}}));
}

void BatchNormalization(Translator& t) {
  const ValueId x = t.Input(0), scale = t.Input(1), bias = t.Input(2);
  const ValueId mean = t.FrozenInput(3), var = t.FrozenInput(4);
  const ValueId stats = t.Emit("batch_norm_stats", {x});
  // ONNX weighs the running value by `momentum`, PyTorch the batch's.
  t.Return(t.Emit(
      "batch_norm", {x, scale, bias, mean, var, stats},
      {{"epsilon", t.Float("epsilon", 1e-5)}, {"momentum", 1.0 - t.Float("momentum", 0.9)}}));
}

void LayerNormalization(Translator& t) {
  const ValueId x = t.Input(0), scale = t.Input(1), bias = t.Input(2);
  if (!t.ok()) return;
  if (t.Axis(t.Int("axis", -1), t.RankOf(x)) != t.RankOf(x) - 1) {
    t.Refuse("normalises over more than the last dimension; only axis -1 is taken");
    return;
  }
  t.Return(t.Emit("layer_norm", {x, scale, bias}, {{"epsilon", t.Float("epsilon", 1e-5)}}));
}

void Gemm(Translator& t) {
  ValueId a = t.Input(0), b = t.Input(1), c = t.Input(2);
  if (!t.ok()) return;
  const auto transposed = [&](ValueId v) {
    return t.Emit("transpose", {v}, {{"perm", std::vector<int64_t>{1, 0}}});
  };
  const auto scaled = [&](ValueId v, double factor) {
    return factor == 1.0 ? v : t.Emit("multiply", {v, t.Scalar(factor, t.DTypeOf(v))});
  };
  if (t.RankOf(a) != 2 || t.RankOf(b) != 2) {
    t.Fail(absl::StrCat("takes two matrices, found shapes ", ToString(t.DimsOf(a)), " and ",
                        ToString(t.DimsOf(b))));
    return;
  }
  if (t.Int("transA", 0) != 0) a = transposed(a);
  if (t.Int("transB", 0) == 0) b = transposed(b);
  a = scaled(a, t.Float("alpha", 1.0));
  if (c != kNoValue) c = scaled(c, t.Float("beta", 1.0));
  if (!t.ok()) return;
  const bool bias = c != kNoValue && t.DimsOf(c) == Dims{t.DimsOf(b)[0]};
  ValueId y = t.Emit("linear", bias ? std::vector<ValueId>{a, b, c} : std::vector<ValueId>{a, b});
  if (c != kNoValue && !bias) y = t.Emit("add", {y, c});
  t.Return(y);
}

void Dropout(Translator& t) {
  const ValueId x = t.Input(0);
  const double rate = t.HasInput(1) ? t.ConstantNumber(1) : 0.5;
  // PyTorch names the mask (output 1) too; whoever read it would be refused.
  t.Return(t.Emit("dropout", {x}, {{"rate", rate}}));
}

}  // namespace

void RegisterNeuralNetwork(TranslationTable* table) {
  (*table)["AveragePool"] = [](Translator& t) { Pool(t, "average"); };
  (*table)["BatchNormalization"] = BatchNormalization;
  (*table)["Conv"] = Conv;
  (*table)["Dropout"] = Dropout;
  (*table)["Gemm"] = Gemm;
  (*table)["GlobalAveragePool"] = GlobalAveragePool;
  (*table)["LayerNormalization"] = LayerNormalization;
  (*table)["MaxPool"] = [](Translator& t) { Pool(t, "max"); };
}

}  // namespace espalier::onnx_import
