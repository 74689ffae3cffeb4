// The fusion rules (fuse.h). Order matters where two match the same nodes: first normalize numbers,
// then recognize operators that exporters decompose, then fuse operators.
#include "ops/rewrite/attention_rules.h"
#include "ops/rewrite/fuse.h"

namespace espalier {
namespace {

// Normal forms of expressions that can be written in several ways.
constexpr char kNumbers[] = R"rules(
rule scalar
  doc "a tensor and a number"
  number c
  either op add
    y = add(x, c)
  or multiply
    y = multiply(x, c)
  or subtract
    y = subtract(x, c)
  or divide
    y = divide(x, c)
  or power
    y = power(x, c)
  end
  =>
  either op add
    y = add_scalar(x) {value: c}
  or multiply
    y = multiply_scalar(x) {value: c}
  or subtract
    y = subtract_scalar(x) {value: c}
  or divide
    y = divide_scalar(x) {value: c}
  or power
    y = power_scalar(x) {value: c}
  end
  example x: f32[3, 5], c: 3

rule square
  doc "x^2 and x^3 without the general function"
  either power two
    y = power_scalar(x) {value: 2}
  or three
    y = power_scalar(x) {value: 3}
  end
  =>
  either power two
    y = multiply(x, x)
  or three
    t = multiply(x, x)
    y = multiply(t, x)
  end
  example x: f32[3, 5]

# PyTorch's exporter knows no reciprocal root.
rule rsqrt
  doc "1 / sqrt(x)"
  e = add_scalar(x) {value: c}
  require c > 0
  t = sqrt(e)
  either how divide
    number one = 1
    y = divide(one, t)
  or reciprocal
    y = reciprocal(t)
  end
  =>
  f = add_scalar(x) {value: c}
  y = rsqrt(f)
  example x: f32[3, 5], c: 3
)rules";

constexpr char kActivations[] = R"rules(
rule silu
  doc "x * sigmoid(x)"
  s = sigmoid(x)
  y = multiply(x, s)
  =>
  y = silu(x)
  example x: f32[3, 5]

rule gelu_erf
  doc "gelu as exporters write it before opset 20"
  either root divide
    r = divide_scalar(x) {value: 1.4142135624}
  or multiply
    r = multiply_scalar(x) {value: 0.7071067812}
  end
  e = erf(r)
  p = add_scalar(e) {value: 1}
  either half last
    t = multiply(x, p)
    y = multiply_scalar(t) {value: 0.5}
  or first
    t = multiply_scalar(x) {value: 0.5}
    y = multiply(t, p)
  or middle
    t = multiply_scalar(p) {value: 0.5}
    y = multiply(x, t)
  end
  =>
  y = gelu(x) {approximate: none}
  example x: f32[3, 5]

rule gelu_tanh
  doc "gelu by tanh: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))"
  either inner cube
    x2 = multiply(x, x)
    x3 = multiply(x2, x)
    c = multiply_scalar(x3) {value: 0.044715}
    a = add(x, c)
    r = multiply_scalar(a) {value: 0.7978845608}
  or square
    s = multiply_scalar(x) {value: 0.044715}
    x2 = multiply(s, x)
    b = add_scalar(x2) {value: 1}
    a = multiply_scalar(x) {value: 0.7978845608}
    r = multiply(a, b)
  end
  h = tanh(r)
  p = add_scalar(h) {value: 1}
  either half first
    t = multiply_scalar(x) {value: 0.5}
    y = multiply(t, p)
  or last
    t = multiply(x, p)
    y = multiply_scalar(t) {value: 0.5}
  or middle
    t = multiply_scalar(p) {value: 0.5}
    y = multiply(x, t)
  end
  =>
  y = gelu(x) {approximate: tanh}
  example x: f32[3, 5]

rule swiglu
  doc "silu of one times the other"
  g = silu(a)
  y = multiply(g, b)
  =>
  y = swiglu(a, b)
  example a: f32[3, 5], b: f32[3, 5]
)rules";

constexpr char kNorms[] = R"rules(
rule layer_norm
  doc "(x - mean) / sqrt(variance + epsilon) over the last dimension"
  m = reduce_mean(x) {axes: [last], keepdims: true}
  d = subtract(x, m)
  either squares one
    q = multiply(d, d)
  or two
    d2 = subtract(x, m)
    q = multiply(d2, d2)
  end
  v = reduce_mean(q) {axes: [last], keepdims: true}
  e = add_scalar(v) {value: epsilon}
  either root sqrt
    r = sqrt(e)
    y = divide(d, r)
  or rsqrt
    r = rsqrt(e)
    y = multiply(d, r)
  end
  =>
  y = layer_norm(x) {epsilon: epsilon}
  example x: f32[3, 4, 8], epsilon: 1e-5

rule layer_norm_scale
  doc "the scale of a layer norm"
  t = layer_norm(x) {*}
  y = multiply(t, w)
  shape x: [..., E]
  shape w: [E]
  =>
  y = layer_norm(x, w) {*: t}
  example x: f32[3, 4, 8], w: f32[8]

rule layer_norm_bias
  doc "the bias of a layer norm"
  t = layer_norm(x, w) {*}
  y = add(t, b)
  shape x: [..., E]
  shape b: [E]
  =>
  y = layer_norm(x, w, b) {*: t}
  example x: f32[3, 4, 8], w: f32[8], b: f32[8]

rule rms_norm
  doc "x / sqrt(mean(x^2) + epsilon) * weight over the last dimension"
  q = multiply(x, x)
  v = reduce_mean(q) {axes: [last], keepdims: true}
  e = add_scalar(v) {value: epsilon}
  either root rsqrt
    r = rsqrt(e)
    t = multiply(x, r)
  or sqrt
    r = sqrt(e)
    t = divide(x, r)
  end
  y = multiply(t, w)
  shape x: [..., E]
  shape w: [E]
  =>
  y = rms_norm(x, w) {epsilon: epsilon}
  example x: f32[3, 4, 8], w: f32[8], epsilon: 1e-5

rule batch_norm_activation
  doc "an activation after a batch norm"
  t = batch_norm(x, w, b, m, v, s) {activation: none, *}
  either function relu
    y = relu(t)
    let function = relu
  or relu6
    y = clip(t) {min: 0, max: 6}
    let function = relu6
  end
  =>
  y = batch_norm(x, w, b, m, v, s) {*: t, activation: function}
  example x: f32[4, 3, 5], w: f32[3], b: f32[3], m: f32[3], v: f32[3], s: f32[2, 3]

rule batch_norm_residual
  doc "a batch norm, something added to it, and relu"
  t = batch_norm(x, w, b, m, v, s) {activation: none, *}
  a = add(t, r)
  y = relu(a)
  shape t: [N...]
  shape r: [N...]
  =>
  y = batch_norm(x, w, b, m, v, s, r) {*: t, activation: relu}
  example x: f32[4, 3, 5], w: f32[3], b: f32[3], m: f32[3], v: f32[3], s: f32[2, 3], r: f32[4, 3, 5]

rule residual_layer_norm
  doc "x + residual and its layer norm; the sum stays"
  s = add(x, r)
  y = layer_norm(s, w?, b?) {epsilon: e}
  =>
  y, s = residual_layer_norm(x, r, w?, b?) {epsilon: e}
  example x: f32[3, 4, 8], r: f32[3, 4, 8], w: f32[8], b: f32[8], e: 1e-5

rule residual_rms_norm
  doc "x + residual and its rms norm; the sum stays"
  s = add(x, r)
  y = rms_norm(s, w) {epsilon: e}
  =>
  y, s = residual_rms_norm(x, r, w) {epsilon: e}
  example x: f32[3, 4, 8], r: f32[3, 4, 8], w: f32[8], e: 1e-5
)rules";

constexpr char kLayers[] = R"rules(
rule linear_of_transpose
  doc "a product with a transposed matrix, as exporters write a linear layer"
  t = transpose(w) {perm: [1, 0]}
  y = matmul(x, t)
  =>
  y = linear(x, w)
  example x: f32[2, 3, 8], w: f32[5, 8]

rule linear_of_matmul
  doc "a product with a matrix that is given the way linear wants it"
  y = matmul(x, w) {transpose_b: true}
  shape w: [_, _]
  =>
  y = linear(x, w)
  example x: f32[2, 3, 8], w: f32[5, 8]

rule linear_bias
  doc "a bias that is added after a linear layer"
  t = linear(x, w) {activation: none}
  y = add(t, b)
  shape w: [O, _]
  shape b: [O]
  =>
  y = linear(x, w, b) {*: t}
  example x: f32[3, 8], w: f32[5, 8], b: f32[5]

rule linear_of_rows
  doc "a linear layer on rows that are made of more dimensions, and of which these are made again"
  f = reshape(x)
  t = linear(f, w, b?) {*}
  y = reshape(t)
  shape x: [N..., I]
  shape f: [R, I]
  shape t: [R, O]
  shape y: [N..., O]
  =>
  y = linear(x, w, b?) {*: t}
  example x: f32[2, 3, 8], w: f32[5, 8], b: f32[5], f.shape: [6, 8], y.shape: [2, 3, 5]

rule activation
  doc "an activation after a layer that can apply it"
  either layer linear
    t = linear(x, w, b?) {activation: none}
    example x: f32[3, 8], w: f32[5, 8], b: f32[5]
  or conv1d
    t = conv1d(x, w, b?) {activation: none, *}
    example x: f32[2, 3, 8], w: f32[4, 3, 3], b: f32[4], t.strides: [2]
  or conv2d
    t = conv2d(x, w, b?) {activation: none, *}
    example x: f32[2, 3, 8, 7], w: f32[4, 3, 3, 3], b: f32[4], t.pads: [1, 0, 1, 2]
  or conv3d
    t = conv3d(x, w, b?) {activation: none, *}
    example x: f32[2, 3, 5, 6, 7], w: f32[4, 3, 3, 3, 3], b: f32[4], t.strides: [1, 2, 1]
  end
  either function relu
    y = relu(t)
    let function = relu
  or sigmoid
    y = sigmoid(t)
    let function = sigmoid
  or tanh
    y = tanh(t)
    let function = tanh
  or gelu
    y = gelu(t) {approximate: none}
    let function = gelu
    choice "saves the memory of t, but the backward pass computes it again"
  or silu
    y = silu(t)
    let function = silu
    choice "saves the memory of t, but the backward pass computes it again"
  end
  =>
  either layer linear
    y = linear(x, w, b?) {*: t, activation: function}
  or conv1d
    y = conv1d(x, w, b?) {*: t, activation: function}
  or conv2d
    y = conv2d(x, w, b?) {*: t, activation: function}
  or conv3d
    y = conv3d(x, w, b?) {*: t, activation: function}
  end
)rules";

}  // namespace

absl::StatusOr<std::vector<RewriteRule>> FusionRules(const OpRegistry& registry) {
  std::vector<RewriteRule> rules;
  for (const std::string& text : {std::string(kNumbers), std::string(kActivations),
                                  std::string(kNorms), AttentionRules(), std::string(kLayers)}) {
    absl::StatusOr<std::vector<RewriteRule>> parsed = ParseRules(registry, text);
    if (!parsed.ok()) return parsed.status();
    for (RewriteRule& rule : *parsed) rules.push_back(std::move(rule));
  }
  return rules;
}

}  // namespace espalier
