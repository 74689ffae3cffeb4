#include "planner/testing/zoo/layers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier::zoo {
namespace {

std::vector<int64_t> Repeat(int64_t value, size_t times) {
  return std::vector<int64_t>(times, value);
}

// All begins, then all ends.
std::vector<int64_t> BothSides(const Window& window) {
  const size_t spatial = window.kernel.size();
  if (window.pads.empty()) return Repeat(0, 2 * spatial);
  std::vector<int64_t> pads = window.pads;
  pads.resize(2 * spatial);
  std::copy_n(window.pads.begin(), spatial, pads.begin() + spatial);
  return pads;
}

}  // namespace

ValueId Layers::Weight(const std::string& name, Dims dims) {
  return b_.Parameter(name, DType::kF32, std::move(dims), {Initializer::kNormal, 0.02});
}

ValueId Layers::Scale(const std::string& name, int64_t width, Initializer::Kind kind,
                      bool trainable) {
  return b_.Parameter(name, DType::kF32, {width}, {kind}, trainable);
}

Features Layers::Linear(const std::string& name, Features x, int64_t out, Bias bias,
                        const std::string& activation) {
  std::vector<ValueId> inputs = {x.value, Weight(name + ".weight", {out, x.width})};
  ValueId b = kNoValue;
  if (bias != Bias::kNone) b = Scale(name + ".bias", out, Initializer::kZeros);
  if (bias == Bias::kFused) inputs.push_back(b);
  ValueId y = b_.Op("linear", inputs, {{"activation", activation}}, name);
  if (bias == Bias::kApart) y = b_.Op("add", {y, b}, {}, name + ".add_bias");
  return {y, out};
}

Features Layers::Conv(const std::string& name, Features x, int64_t out, const Window& window,
                      Bias bias, const std::string& activation) {
  const size_t spatial = window.kernel.size();
  Dims weight = {out, x.width};
  weight.insert(weight.end(), window.kernel.begin(), window.kernel.end());
  std::vector<ValueId> inputs = {x.value, Weight(name + ".weight", weight)};
  if (bias == Bias::kFused) inputs.push_back(Scale(name + ".bias", out, Initializer::kZeros));
  return {b_.Op(absl::StrCat("conv", spatial, "d"), inputs,
                {{"strides", Repeat(window.stride, spatial)},
                 {"pads", BothSides(window)},
                 {"activation", activation}},
                name),
          out};
}

Features Layers::UpConv3d(const std::string& name, Features x, int64_t out) {
  return {b_.Op("conv_transpose3d", {x.value, Weight(name + ".weight", {x.width, out, 2, 2, 2})},
                {{"strides", Repeat(2, 3)}}, name),
          out};
}

Features Layers::BatchNorm(const std::string& name, Features x, const BatchNormOptions& options) {
  const ValueId stats = b_.Op("batch_norm_stats", {x.value}, {}, name + ".stats");
  std::vector<ValueId> inputs = {
      x.value,
      Scale(name + ".weight", x.width, Initializer::kOnes),
      Scale(name + ".bias", x.width, Initializer::kZeros),
      Scale(name + ".running_mean", x.width, Initializer::kZeros, /*trainable=*/false),
      Scale(name + ".running_var", x.width, Initializer::kOnes, /*trainable=*/false),
      stats};
  if (options.residual != kNoValue) inputs.push_back(options.residual);
  return {b_.Op("batch_norm", inputs,
                {{"epsilon", options.epsilon}, {"activation", options.activation}}, name),
          x.width};
}

Features Layers::GroupNorm(const std::string& name, Features x, int64_t groups) {
  return {b_.Op("group_norm",
                {x.value, Scale(name + ".weight", x.width, Initializer::kOnes),
                 Scale(name + ".bias", x.width, Initializer::kZeros)},
                {{"groups", groups}}, name),
          x.width};
}

Features Layers::Pool2d(const std::string& name, Features x, const std::string& kind,
                        const Window& window) {
  return {b_.Op("pool2d", {x.value},
                {{"kind", kind},
                 {"kernel", window.kernel},
                 {"strides", Repeat(window.stride, 2)},
                 {"pads", BothSides(window)},
                 {"count_include_pad", true}},
                name),
          x.width};
}

Features Layers::GlobalAverage(const std::string& name, Features x) {
  return {b_.Op("reduce_mean", {x.value}, {{"axes", std::vector<int64_t>{2, 3}}}, name), x.width};
}

Features Layers::Concat(const std::string& name, const std::vector<Features>& parts) {
  std::vector<ValueId> values;
  int64_t width = 0;
  for (const Features& part : parts) {
    values.push_back(part.value);
    width += part.width;
  }
  return {b_.Op("concat", values, {{"axis", int64_t{1}}}, name), width};
}

Features Layers::LayerNorm(const std::string& name, Features x) {
  return {b_.Op("layer_norm",
                {x.value, Scale(name + ".weight", x.width, Initializer::kOnes),
                 Scale(name + ".bias", x.width, Initializer::kZeros)},
                {}, name),
          x.width};
}

Layers::Normed Layers::ResidualLayerNorm(const std::string& name, Features x, Features residual) {
  const std::vector<ValueId> y =
      b_.OpN("residual_layer_norm", 2,
             {x.value, residual.value, Scale(name + ".weight", x.width, Initializer::kOnes),
              Scale(name + ".bias", x.width, Initializer::kZeros)},
             {}, name);
  return {{y[0], x.width}, {y[1], x.width}};
}

absl::StatusOr<Graph> Layers::Classify(Features logits, Dims labels) {
  const ValueId label = b_.Input("labels", DType::kI64, std::move(labels));
  b_.Output("loss", b_.Op("sparse_categorical_crossentropy", {logits.value, label}, {}, "loss"));
  return b_.Build();
}

}  // namespace espalier::zoo
