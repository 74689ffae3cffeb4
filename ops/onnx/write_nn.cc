// Exports layers.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "ops/onnx/recurrent_activations.h"
#include "ops/onnx/writer.h"

namespace espalier::onnx_export {
namespace {

using Int64s = std::vector<int64_t>;

// The result of op_type followed by the node's fused activation.
void FinishActivated(Writer& w, const std::string& op_type, const std::vector<std::string>& inputs,
                     const Attributes& attributes = {}) {
  const std::string activation = w.attributes().String("activation", "none");
  if (activation == "none") return w.Finish(op_type, inputs, attributes);
  const std::string y = w.Emit(op_type, inputs, attributes);
  if (activation == "relu") return w.Finish("Relu", {y});
  if (activation == "gelu") return w.Finish("Gelu", {y});
  if (activation == "silu") return w.Finish("Mul", {y, w.Emit("Sigmoid", {y})});
  if (activation == "sigmoid") return w.Finish("Sigmoid", {y});
  if (activation == "tanh") return w.Finish("Tanh", {y});
  w.Refuse(absl::StrCat("activation '", activation, "' has no form in ONNX"));
}

void Linear(Writer& w) {
  if (w.Rank(0) == 2) {
    return FinishActivated(w, "Gemm", {w.In(0), w.In(1), w.In(2)}, {{"transB", int64_t{1}}});
  }
  const std::string weight = w.Transpose(w.In(1), {1, 0});
  if (!w.HasIn(2)) return FinishActivated(w, "MatMul", {w.In(0), weight});
  FinishActivated(w, "Add", {w.Emit("MatMul", {w.In(0), weight}), w.In(2)});
}

std::string Swapped(Writer& w, int i) {
  Int64s perm;
  for (int d = 0; d < w.Rank(i); ++d) perm.push_back(d);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return w.Transpose(w.In(i), perm);
}

void MatMul(Writer& w) {
  w.Finish("MatMul", {w.attributes().Bool("transpose_a") ? Swapped(w, 0) : w.In(0),
                      w.attributes().Bool("transpose_b") ? Swapped(w, 1) : w.In(1)});
}

void Conv(Writer& w, const std::string& op_type) {
  const Attributes& a = w.attributes();
  const Int64s strides = a.Ints("strides"), dilations = a.Ints("dilations");
  Attributes written = {{"group", a.Int("groups", 1)}};
  if (!strides.empty()) written.Set("strides", strides);
  if (!dilations.empty()) written.Set("dilations", dilations);
  if (a.Has("pads")) written.Set("pads", a.Ints("pads"));
  if (a.Has("output_padding")) written.Set("output_padding", a.Ints("output_padding"));
  FinishActivated(w, op_type, {w.In(0), w.In(1), w.In(2)}, written);
}

void Pool(Writer& w, const std::string& op_type) {
  const Attributes& a = w.attributes();
  Attributes written = {{"kernel_shape", a.Ints("kernel")}, {"ceil_mode", a.Bool("ceil_mode")}};
  for (const char* name : {"strides", "pads"}) {
    if (a.Has(name)) written.Set(name, a.Ints(name));
  }
  const Int64s dilations = a.Ints("dilations");
  const bool dilated =
      std::any_of(dilations.begin(), dilations.end(), [](int64_t d) { return d != 1; });
  if (dilated) written.Set("dilations", dilations);
  if (op_type == "AveragePool") written.Set("count_include_pad", a.Bool("count_include_pad"));
  if (op_type == "LpPool") written.Set("p", a.Int("p", 2));
  if (a.Bool("column_major")) written.Set("storage_order", int64_t{1});
  w.Finish(op_type, {w.In(0)}, written);
}

void Pool2d(Writer& w) {
  const std::string kind = w.attributes().String("kind");
  Pool(w, kind == "max" ? "MaxPool" : kind == "lp" ? "LpPool" : "AveragePool");
}

void AdaptivePool2d(Writer& w) {
  const bool max = w.attributes().String("kind") == "max";
  const Int64s size = w.attributes().Ints("size");
  if (size == Int64s{1, 1}) return w.Finish(max ? "GlobalMaxPool" : "GlobalAveragePool", {w.In(0)});
  Int64s kernel;
  for (int d = 0; d < 2; ++d) {
    const int64_t extent = w.InType(0).dims[2 + d];
    if (size[d] <= 0 || extent % size[d] != 0) {
      return w.Refuse(absl::StrCat("windows of different sizes (", extent, " to ", size[d],
                                   ") have no form in ONNX"));
    }
    kernel.push_back(extent / size[d]);
  }
  w.Finish(max ? "MaxPool" : "AveragePool", {w.In(0)},
           {{"kernel_shape", kernel}, {"strides", kernel}});
}

void BatchNorm(Writer& w) {
  const std::vector<std::string> inputs = {w.In(0), w.In(1), w.In(2), w.In(3), w.In(4)};
  const Attributes attributes = {{"epsilon", w.attributes().Float("epsilon")},
                                 {"momentum", 1.0 - w.attributes().Float("momentum", 0.1)}};
  const std::string activation = w.attributes().String("activation", "none");
  if (activation == "none") return w.Finish("BatchNormalization", inputs, attributes);
  std::string y = w.Emit("BatchNormalization", inputs, attributes);
  if (w.HasIn(6)) y = w.Emit("Add", {y, w.In(6)});
  if (activation == "relu") return w.Finish("Relu", {y});
  const DType dtype = w.InType(0).dtype;
  w.Finish("Clip", {y, w.Number(0, dtype), w.Number(6, dtype)});
}

std::string Given(Writer& w, int i, int64_t size, float otherwise) {
  return w.HasIn(i) ? w.In(i) : w.Floats({size}, std::vector<float>(size, otherwise));
}

void LayerNormOf(Writer& w, const std::string& x, int scale, const std::string& to) {
  const int64_t size = w.InType(0).dims.back();
  w.EmitTo({to}, "LayerNormalization", {x, Given(w, scale, size, 1), w.In(scale + 1)},
           {{"axis", int64_t{-1}}, {"epsilon", w.attributes().Float("epsilon")}});
}

void RmsNormOf(Writer& w, const std::string& x, int weight, const std::string& to) {
  const DType dtype = w.InType(0).dtype;
  const std::string mean = w.Reduce("ReduceMean", w.Emit("Mul", {x, x}), {-1}, true);
  const std::string root =
      w.Emit("Sqrt", {w.Emit("Add", {mean, w.Number(w.attributes().Float("epsilon"), dtype)})});
  w.EmitTo({to}, "Mul", {w.Emit("Div", {x, root}), w.In(weight)});
}

void GroupNorm(Writer& w) {
  const int64_t channels = w.InType(0).dims[1];
  w.Finish(
      "GroupNormalization", {w.In(0), Given(w, 1, channels, 1), Given(w, 2, channels, 0)},
      {{"num_groups", w.attributes().Int("groups")}, {"epsilon", w.attributes().Float("epsilon")}});
}

void Dropout(Writer& w) {
  w.Finish("Dropout", {w.In(0), w.Number(w.attributes().Float("rate"), DType::kF32)});
}

// The angle of each position and frequency, [S, D / 2], with its cosine and sine next to each
// head's halves.
void Rotary(Writer& w) {
  const TensorType& x = w.InType(0);
  const size_t rank = x.dims.size();
  const int64_t half = w.attributes().Int("head_dim") / 2, rows = x.dims[rank - 2];
  if (rank != 3 || Writer::IsBatch(rows)) return w.Refuse("only x[B, S, H * D] is written");
  std::vector<float> frequencies;
  for (int64_t i = 0; i < half; ++i) {
    frequencies.push_back(
        static_cast<float>(1.0 / std::pow(w.attributes().Float("theta"),
                                          static_cast<double>(i) / static_cast<double>(half))));
  }
  std::string positions;
  if (w.HasIn(1)) {
    positions = w.CastTo(w.In(1), DType::kF32);
  } else {
    std::vector<float> all;
    for (int64_t s = 0; s < rows; ++s) all.push_back(static_cast<float>(s));
    positions = w.Floats({rows}, all);
  }
  const std::string angles = w.Emit("Mul", {w.Emit("Unsqueeze", {positions, w.Ints({1, 2})}),
                                            w.Floats({1, 1, half}, frequencies)});
  std::string turns[2] = {w.Emit("Cos", {angles}), w.Emit("Sin", {angles})};
  for (std::string& turn : turns) {
    if (x.dtype != DType::kF32) turn = w.CastTo(turn, x.dtype);
  }
  const std::string heads = w.Reshape(w.In(0), {0, 0, -1, 2 * half});
  const auto part = [&](int64_t start) {
    return w.Emit("Slice", {heads, w.Ints({start}), w.Ints({start + half}), w.Ints({3})});
  };
  const std::string a = part(0), b = part(half);
  const std::string first =
      w.Emit("Sub", {w.Emit("Mul", {a, turns[0]}), w.Emit("Mul", {b, turns[1]})});
  const std::string second =
      w.Emit("Add", {w.Emit("Mul", {b, turns[0]}), w.Emit("Mul", {a, turns[1]})});
  const std::string turned = w.Emit("Concat", {first, second}, {{"axis", int64_t{3}}});
  w.Finish("Reshape", {turned, w.Ints({0, 0, x.dims[2]})});
}

void Attention(Writer& w) {
  const int64_t head_dim = w.attributes().Int("head_dim");
  const Dims& q = w.InType(0).dims;
  const Dims& k = w.InType(1).dims;
  const int64_t heads = q[2] / head_dim, kv_heads = k[2] / head_dim, rows = q[1], columns = k[1];
  const DType dtype = w.InType(0).dtype;
  if (Writer::IsBatch(rows) || Writer::IsBatch(columns)) return w.Refuse("its rows are the batch");
  const auto split = [&](int i, int64_t n, const Int64s& perm) {
    std::string x = w.Reshape(w.In(i), {0, 0, n, head_dim});
    x = w.Transpose(x, perm);
    if (n == heads) return x;
    // Repeats K/V heads for grouped-query attention.
    const Dims& dims = w.InType(i).dims;
    const bool turned = perm[2] == 3;
    x = w.Emit("Expand", {w.Emit("Unsqueeze", {x, w.Ints({2})}), w.Ints({1, 1, heads / n, 1, 1})});
    return w.Reshape(
        x, turned ? Int64s{0, heads, head_dim, dims[1]} : Int64s{0, heads, dims[1], head_dim});
  };
  double scale = w.attributes().Float("scale");
  if (scale == 0) scale = 1 / std::sqrt(static_cast<double>(head_dim));
  std::string scores =
      w.Emit("MatMul", {split(0, heads, {0, 2, 1, 3}), split(1, kv_heads, {0, 2, 3, 1})});
  scores = w.Emit("Mul", {scores, w.Number(scale, dtype)});
  const std::string hidden = w.Number(-1e30, DType::kF32);
  const std::string never = dtype == DType::kF32 ? hidden : w.Number(-6e4, dtype);
  if (w.HasIn(3)) {
    std::string mask = w.In(3);
    if (w.Rank(3) == 3) mask = w.Emit("Unsqueeze", {mask, w.Ints({1})});
    const bool boolean = w.InType(3).dtype == DType::kBool;
    scores = boolean ? w.Emit("Where", {mask, scores, never}) : w.Emit("Add", {scores, mask});
  }
  if (w.attributes().Bool("causal")) {
    std::vector<bool> visible;
    for (int64_t s = 0; s < rows; ++s) {
      for (int64_t t = 0; t < columns; ++t) visible.push_back(t <= s);
    }
    scores = w.Emit("Where", {w.Bools({rows, columns}, visible), scores, never});
  }
  const std::string y = w.Emit("MatMul", {w.Emit("Softmax", {scores}, {{"axis", int64_t{-1}}}),
                                          split(2, kv_heads, {0, 2, 1, 3})});
  w.Finish("Reshape", {w.Transpose(y, {0, 2, 1, 3}), w.Ints({0, 0, q[2]})});
}

void Recurrent(Writer& w, const std::string& op_type) {
  const Attributes& a = w.attributes();
  Attributes written = {{"hidden_size", a.Int("hidden")}, {"direction", a.String("direction")}};
  if (a.Float("clip") > 0) written.Set("clip", a.Float("clip"));
  if (op_type == "GRU") written.Set("linear_before_reset", a.Bool("linear_before_reset"));
  std::vector<std::string> inputs;
  for (int i = 0; i < w.NumIn(); ++i) inputs.push_back(w.In(i));
  const onnx_import::OnnxActivations activations =
      onnx_import::WriteActivations({a.String("activations"), a.Floats("alpha"), a.Floats("beta")});
  if (!activations.alpha.empty()) written.Set("activation_alpha", activations.alpha);
  if (!activations.beta.empty()) written.Set("activation_beta", activations.beta);
  w.Finish(op_type, inputs, written);
  if (!activations.names.empty()) w.AddStrings("activations", activations.names);
}

void Resize(Writer& w) {
  const Attributes& a = w.attributes();
  const size_t rank = w.InType(0).dims.size();
  const std::vector<double> scales = a.Floats("scales");
  const size_t given = std::max(a.Ints("size").size(), scales.size());
  if (!a.Floats("roi").empty()) return w.Refuse("attribute 'roi' is not written");
  Int64s axes, size;
  std::vector<float> factors;
  bool exact = !scales.empty();
  for (size_t i = 0; i < given; ++i) {
    const size_t d = rank - given + i;
    const int64_t from = w.InType(0).dims[d], to = w.OutType().dims[d];
    const double scale = scales.empty() ? 1.0 : scales[i];
    if (from == to && scale == 1) continue;
    axes.push_back(static_cast<int64_t>(d));
    size.push_back(to);
    factors.push_back(static_cast<float>(scale));
    exact = exact && std::floor(static_cast<double>(from) * scale) == static_cast<double>(to);
  }
  if (axes.empty()) return w.Finish("Identity", {w.In(0)});
  const std::string by_scale =
      exact ? w.Floats({static_cast<int64_t>(factors.size())}, factors) : "";
  w.Finish("Resize", {w.In(0), "", by_scale, exact ? "" : w.Ints(size)},
           {{"mode", a.String("mode")},
            {"coordinate_transformation_mode", a.String("coordinates")},
            {"nearest_mode", a.String("nearest_mode")},
            {"cubic_coeff_a", a.Float("cubic_a", -0.75)},
            {"exclude_outside", a.Bool("exclude_outside")},
            {"antialias", a.Bool("antialias")},
            {"axes", axes}});
}

void GridSample(Writer& w) {
  std::string mode = w.attributes().String("mode", "bilinear");
  if (mode == "bilinear") mode = "linear";
  if (mode == "bicubic") mode = "cubic";
  w.Finish("GridSample", {w.In(0), w.In(1)},
           {{"mode", mode},
            {"padding_mode", w.attributes().String("padding", "zeros")},
            {"align_corners", w.attributes().Bool("align_corners")}});
}

}  // namespace

void RegisterLayerWriters(WriterTable& table) {
  table["adaptive_pool2d"] = AdaptivePool2d;
  table["attention"] = Attention;
  table["batch_norm"] = BatchNorm;
  table["batch_norm_stats"] = [](Writer&) {};  // used in training only
  for (const char* n : {"1d", "2d", "3d"}) {
    table[absl::StrCat("conv", n)] = [](Writer& w) { Conv(w, "Conv"); };
    table[absl::StrCat("conv_transpose", n)] = [](Writer& w) { Conv(w, "ConvTranspose"); };
  }
  table["dropout"] = Dropout;
  table["grid_sample"] = GridSample;
  table["group_norm"] = GroupNorm;
  table["gru"] = [](Writer& w) { Recurrent(w, "GRU"); };
  table["layer_norm"] = [](Writer& w) { LayerNormOf(w, w.In(0), 1, w.Out()); };
  table["linear"] = Linear;
  table["lstm"] = [](Writer& w) { Recurrent(w, "LSTM"); };
  table["matmul"] = MatMul;
  table["max_pool_indices"] = [](Writer& w) { Pool(w, "MaxPool"); };
  table["pool2d"] = Pool2d;
  table["residual_layer_norm"] = [](Writer& w) {
    w.EmitTo({w.Out(1)}, "Add", {w.In(0), w.In(1)});
    LayerNormOf(w, w.Out(1), 2, w.Out(0));
  };
  table["residual_rms_norm"] = [](Writer& w) {
    w.EmitTo({w.Out(1)}, "Add", {w.In(0), w.In(1)});
    RmsNormOf(w, w.Out(1), 2, w.Out(0));
  };
  table["resize"] = Resize;
  table["rms_norm"] = [](Writer& w) { RmsNormOf(w, w.In(0), 1, w.Out()); };
  table["rnn"] = [](Writer& w) { Recurrent(w, "RNN"); };
  table["rotary"] = Rotary;
}

}  // namespace espalier::onnx_export
