// Layers: matrix products, normalization, dropout, recurrent networks, losses.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ops/onnx/recurrent_activations.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

void Gemm(Translator& t) {
  ValueId a = t.Required(0), b = t.Required(1), c = t.Input(2);
  if (!t.ok()) return;
  const auto scaled = [&](ValueId v, double factor) {
    return factor == 1.0 ? v : t.Binary("multiply", v, factor);
  };
  if (t.RankOf(a) != 2 || t.RankOf(b) != 2) {
    return t.Fail(absl::StrCat("takes two matrices, found shapes ", ToString(t.DimsOf(a)), " and ",
                               ToString(t.DimsOf(b))));
  }
  if (t.Bool("transA")) a = t.Transpose(a, {1, 0});
  if (!t.Bool("transB")) b = t.Transpose(b, {1, 0});
  a = scaled(a, t.Float("alpha", 1.0));
  if (c != kNoValue) c = scaled(c, t.Float("beta", 1.0));
  if (!t.ok()) return;
  const bool bias = c != kNoValue && t.DimsOf(c) == Dims{t.DimsOf(b)[0]};
  ValueId y = t.Emit("linear", bias ? std::vector<ValueId>{a, b, c} : std::vector<ValueId>{a, b});
  if (c != kNoValue && !bias) y = t.Binary("add", y, c);
  t.Return(y);
}

// numpy's matmul: a vector is a row on the left and a column on the right.
void MatMul(Translator& t) {
  ValueId a = t.Required(0), b = t.Required(1);
  if (!t.ok()) return;
  const bool row = t.RankOf(a) == 1, column = t.RankOf(b) == 1;
  if (row) a = t.Reshape(a, {1, t.DimsOf(a)[0]});
  if (column) b = t.Reshape(b, {t.DimsOf(b)[0], 1});
  const ValueId y = t.Emit("matmul", {a, b});
  if (!t.ok() || (!row && !column)) return t.Return(y);
  Dims dims = t.DimsOf(y);
  if (column) dims.pop_back();
  if (row) dims.erase(dims.end() - (column ? 1 : 2));
  t.Return(t.Reshape(y, dims));
}

void Dropout(Translator& t) {
  const ValueId x = t.Required(0);
  double rate = t.opset() < 12 ? t.Float("ratio", 0.5) : t.HasInput(1) ? t.ConstantNumber(1) : 0.5;
  if (!t.ok()) return;
  // A file without training_mode is for inference, and Espalier trains it anyway; only a requested
  // mask shows what is meant.
  const bool training = t.opset() >= 12 && t.HasInput(2) && t.ConstantNumber(2) != 0;
  const ValueId y = rate == 0 ? x : t.Emit("dropout", {x}, {{"rate", rate}});
  t.Return(y);
  if (!t.WantsOutput(1) || !t.ok()) return;
  // PyTorch names the mask in any case; models that read a random one are refused.
  if (training && rate != 0) return;
  Dims ones(t.RankOf(x), 1);
  const ValueId all =
      t.Emit("fill", {}, {{"dims", ones}, {"value", 1.0}, {"dtype", std::string("bool")}});
  t.Return(t.Expand(all, t.DimsOf(x)), 1);
}

// Reshapes [C] to [C, 1, ...], to broadcast with x[N, C, ...].
ValueId PerChannel(Translator& t, ValueId v, int rank) {
  Dims dims(std::max(1, rank - 1), 1);
  dims[0] = NumElements(t.DimsOf(v));
  return t.Reshape(v, dims);
}

void BatchNormalization(Translator& t) {
  const ValueId x = t.Required(0), scale = t.Required(1), bias = t.Required(2);
  const std::vector<ValueId> layer = {scale, bias, t.Required(3), t.Required(4)};
  const ValueId mean = t.NonTrainableInput(3, layer), var = t.NonTrainableInput(4, layer);
  if (!t.ok()) return;
  const double epsilon = t.Float("epsilon", 1e-5), momentum = t.Float("momentum", 0.9);
  const bool running = t.IsParameter(mean) && t.IsParameter(var);
  const bool training = t.opset() < 14 ? t.WantsOutput(1) : t.Bool("training_mode");
  if (!training || running) {
    for (int k = 1; k < t.node().output_size(); ++k) {
      // If the running statistics are parameters, the operator updates them itself.
      if (t.WantsOutput(k)) t.Return(k == 1 || k == 3 ? mean : var, k);
    }
    // ONNX's `momentum` weights the running value, PyTorch's the batch.
    Attributes attributes = {{"epsilon", epsilon}, {"momentum", 1.0 - momentum}};
    const ValueId stats = running ? t.Emit("batch_norm_stats", {x}) : kNoValue;
    t.Return(t.Emit("batch_norm", {x, scale, bias, mean, var, stats}, std::move(attributes)));
    return;
  }
  // Batch statistics, with updated running statistics as outputs.
  const int rank = t.RankOf(x);
  std::vector<int64_t> axes;
  for (int d = 0; d < rank; ++d) {
    if (d != 1) axes.push_back(d);
  }
  const ValueId batch_mean = t.Reduce("reduce_mean", x, axes, false);
  const ValueId centred = t.Binary("subtract", x, PerChannel(t, batch_mean, rank));
  const ValueId batch_var =
      t.Reduce("reduce_mean", t.Binary("multiply", centred, centred), axes, false);
  const ValueId factor =
      t.Binary("multiply", scale, t.Emit("rsqrt", {t.Binary("add", batch_var, epsilon)}));
  t.Return(t.Binary("add", t.Binary("multiply", centred, PerChannel(t, factor, rank)),
                    PerChannel(t, bias, rank)));
  const auto moved = [&](ValueId old, ValueId now) {
    return t.Binary("add", t.Binary("multiply", old, momentum),
                    t.Binary("multiply", now, 1.0 - momentum));
  };
  t.Return(moved(mean, batch_mean), 1);
  t.Return(moved(var, batch_var), 2);
}

void LayerNormalization(Translator& t) {
  const ValueId x = t.Required(0);
  ValueId scale = t.Required(1), bias = t.Input(2);
  if (!t.ok()) return;
  const int rank = t.RankOf(x);
  const int64_t axis = t.Axis(t.Int("axis", -1), rank);
  if (!t.ok()) return;
  const double epsilon = t.Float("epsilon", 1e-5);
  const Dims dims = t.DimsOf(x), normal(dims.begin() + axis, dims.end());
  Dims flat(dims.begin(), dims.begin() + axis);
  flat.push_back(NumElements(normal));
  const auto flattened = [&](ValueId v) {
    return v == kNoValue ? v : t.Reshape(t.Expand(v, normal), {flat.back()});
  };
  scale = flattened(scale);
  bias = flattened(bias);
  t.Return(t.Reshape(
      t.Emit("layer_norm", {t.Reshape(x, flat), scale, bias}, {{"epsilon", epsilon}}), dims));
  if (!t.WantsOutput(1) && !t.WantsOutput(2)) return;
  std::vector<int64_t> axes;
  for (int64_t d = axis; d < rank; ++d) axes.push_back(d);
  const ValueId mean = t.Reduce("reduce_mean", x, axes, true);
  const ValueId centred = t.Binary("subtract", x, mean);
  const ValueId variance =
      t.Reduce("reduce_mean", t.Binary("multiply", centred, centred), axes, true);
  t.Return(mean, 1);
  t.Return(t.Emit("rsqrt", {t.Binary("add", variance, epsilon)}), 2);
}

void InstanceNormalization(Translator& t) {
  const ValueId x = t.Required(0);
  if (t.ok() && t.RankOf(x) < 3) return t.Fail("takes x[N, C, ...]");
  if (!t.ok()) return;
  t.Return(t.Emit("group_norm", {x, t.Required(1), t.Required(2)},
                  {{"groups", t.DimsOf(x)[1]}, {"epsilon", t.Float("epsilon", 1e-5)}}));
}

void GroupNormalization(Translator& t) {
  const ValueId x = t.Required(0);
  ValueId scale = t.Required(1), bias = t.Required(2);
  if (t.ok() && t.RankOf(x) < 3) return t.Fail("takes x[N, C, ...]");
  const int64_t groups = t.Int("num_groups", 0);
  if (!t.ok()) return;
  const int64_t channels = t.DimsOf(x)[1];
  if (groups <= 0 || channels % groups != 0) {
    return t.Fail(
        absl::StrCat("attribute 'num_groups' is ", groups, ", x has ", channels, " channels"));
  }
  if (t.opset() < 21 && groups != channels) {  // one scale per group
    const auto repeated = [&](ValueId v) {
      return t.Reshape(t.Expand(t.Reshape(v, {groups, 1}), {groups, channels / groups}),
                       {channels});
    };
    scale = repeated(scale);
    bias = repeated(bias);
  }
  t.Return(t.Emit("group_norm", {x, scale, bias},
                  {{"groups", groups}, {"epsilon", t.Float("epsilon", 1e-5)}}));
}

void Lrn(Translator& t) {
  t.Return(t.Emit("lrn", {t.Required(0)},
                  {{"size", t.Int("size", 0)},
                   {"alpha", t.Float("alpha", 1e-4)},
                   {"beta", t.Float("beta", 0.75)},
                   {"bias", t.Float("bias", 1)}}));
}

// op: "rnn", "gru" or "lstm".
void Recurrent(Translator& t, const std::string& op) {
  const bool lstm = op == "lstm";
  ValueId x = t.Required(0), lengths = t.Input(4), h0 = t.Input(5);
  const ValueId w = t.Required(1), r = t.Required(2), b = t.Input(3);
  if (!t.ok()) return;
  if (t.Int("input_forget", 0) != 0) return t.Refuse("attribute 'input_forget' is not taken");
  if (t.RankOf(r) != 3) return t.Fail("input 2 (R) must have three dimensions");
  const bool by_batch = t.Bool("layout");
  const auto swapped = [&](ValueId v) {
    return v == kNoValue || !by_batch ? v : t.Transpose(v, {1, 0, 2});
  };
  Attributes attributes = {{"hidden", t.Int("hidden_size", t.DimsOf(r)[2])},
                           {"direction", t.String("direction", "forward")}};
  const absl::StatusOr<RecurrentActivations> activations = ReadActivations(
      t.Strings("activations"), t.Floats("activation_alpha"), t.Floats("activation_beta"));
  if (!activations.ok()) return t.SetStatus(activations.status());
  if (!activations->names.empty()) attributes.Set("activations", activations->names);
  if (!activations->alpha.empty()) attributes.Set("alpha", activations->alpha);
  if (!activations->beta.empty()) attributes.Set("beta", activations->beta);
  if (t.Attribute("clip") != nullptr) attributes.Set("clip", t.Float("clip", 0));
  if (op == "gru") attributes.Set("linear_before_reset", t.Bool("linear_before_reset"));
  if (lengths != kNoValue) lengths = t.Cast(lengths, DType::kI32);
  std::vector<ValueId> inputs = {swapped(x), w, r, b, lengths, swapped(h0)};
  if (lstm) {
    inputs.push_back(swapped(t.Input(6)));
    inputs.push_back(t.Input(7));
  }
  std::vector<ValueId> results = t.EmitN(op, lstm ? 3 : 2, inputs, std::move(attributes));
  if (!t.ok()) return;
  if (by_batch) {
    results[0] = t.Transpose(results[0], {2, 0, 1, 3});
    for (size_t k = 1; k < results.size(); ++k) results[k] = swapped(results[k]);
  }
  t.ReturnAll(results);
}

ValueId LogLikelihood(Translator& t, ValueId log_probabilities) {
  Attributes attributes = {{"reduction", t.String("reduction", "mean")},
                           {"mean_over", std::string("counted")}};
  if (t.Attribute("ignore_index") != nullptr) {
    attributes.Set("ignore_index", t.Int("ignore_index", 0));
  }
  return t.Emit("negative_log_likelihood", {log_probabilities, t.Required(1), t.Input(2)},
                std::move(attributes));
}

void NegativeLogLikelihoodLoss(Translator& t) { t.Return(LogLikelihood(t, t.Required(0))); }

void SoftmaxCrossEntropyLoss(Translator& t) {
  const ValueId log = t.Emit("log_softmax", {t.Required(0)}, {{"axis", int64_t{1}}});
  t.Return(LogLikelihood(t, log));
  t.Return(log, 1);
}

}  // namespace

void RegisterNeuralNetworkTranslations(TranslationTable& table) {
  table["BatchNormalization"] = BatchNormalization;
  table["Dropout"] = Dropout;
  table["GRU"] = [](Translator& t) { Recurrent(t, "gru"); };
  table["Gemm"] = Gemm;
  table["GroupNormalization"] = GroupNormalization;
  table["InstanceNormalization"] = InstanceNormalization;
  table["LRN"] = Lrn;
  table["LSTM"] = [](Translator& t) { Recurrent(t, "lstm"); };
  table["LayerNormalization"] = LayerNormalization;
  table["MatMul"] = MatMul;
  table["NegativeLogLikelihoodLoss"] = NegativeLogLikelihoodLoss;
  table["RNN"] = [](Translator& t) { Recurrent(t, "rnn"); };
  table["SoftmaxCrossEntropyLoss"] = SoftmaxCrossEntropyLoss;
}

}  // namespace espalier::onnx_import
