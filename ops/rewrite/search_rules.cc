// Rules that only a search can decide on (fuse.h): each is faster in some places and slower in
// others, or enables splits that the other form lacks.
#include "ops/rewrite/fuse.h"

namespace espalier {
namespace {

// Undo fusion: a product with a split reduction must be summed before anything else, so a layer
// with a fused bias or activation cannot be split that way.
constexpr char kApart[] = R"rules(
rule activation_apart
  doc "a layer without the activation that it applies"
  choice "opens the split of what the layer sums over, but passes over its result once more"
  either function relu
    let function = relu
  or sigmoid
    let function = sigmoid
  or tanh
    let function = tanh
  or gelu
    let function = gelu
  or silu
    let function = silu
  end
  either layer linear
    y = linear(x, w, b?) {activation: function}
    example x: f32[3, 8], w: f32[5, 8], b: f32[5]
  or conv2d
    y = conv2d(x, w, b?) {activation: function, *}
    example x: f32[2, 3, 8, 7], w: f32[4, 3, 3, 3], b: f32[4], y.pads: [1, 0, 1, 2]
  end
  =>
  either layer linear
    t = linear(x, w, b?)
  or conv2d
    t = conv2d(x, w, b?) {*: y, activation: none}
  end
  either function relu
    y = relu(t)
  or sigmoid
    y = sigmoid(t)
  or tanh
    y = tanh(t)
  or gelu
    y = gelu(t) {approximate: none}
  or silu
    y = silu(t)
  end

rule bias_apart
  doc "a linear layer without the bias that it adds"
  choice "opens the split of what the layer sums over, but passes over its result once more"
  y = linear(x, w, b) {activation: none}
  =>
  t = linear(x, w)
  y = add(t, b)
  example x: f32[2, 3, 8], w: f32[5, 8], b: f32[5]
)rules";

// Merge layers that read the same input.
constexpr char kSiblings[] = R"rules(
rule merge_linear
  doc "linear layers that read the same"
  choice "one large product and one gradient of what they read, but results are copied apart"
  either bias without
    a = linear(x, v) {activation: none}
    b = linear(x, w) {activation: none}
    example x: f32[2, 3, 8], v: f32[5, 8], w: f32[4, 8]
  or with
    a = linear(x, v, p) {activation: none}
    b = linear(x, w, q) {activation: none}
    example x: f32[2, 3, 8], v: f32[5, 8], w: f32[4, 8], p: f32[5], q: f32[4]
  end
  shape v: [A, _]
  shape w: [B, _]
  =>
  weight = concat(v, w) {axis: 0}
  either bias without
    all = linear(x, weight)
  or with
    bias = concat(p, q) {axis: 0}
    all = linear(x, weight, bias)
  end
  a, b = split(all) {axis: -1, sizes: [A, B]}

rule merge_linear_3
  doc "query, key and value"
  choice "one large product and one gradient of what they read, but results are copied apart"
  either bias without
    a = linear(x, v) {activation: none}
    b = linear(x, w) {activation: none}
    c = linear(x, u) {activation: none}
    example x: f32[2, 3, 8], v: f32[5, 8], w: f32[4, 8], u: f32[3, 8]
  or with
    a = linear(x, v, p) {activation: none}
    b = linear(x, w, q) {activation: none}
    c = linear(x, u, r) {activation: none}
    example x: f32[2, 3, 8], v: f32[5, 8], w: f32[4, 8], u: f32[3, 8]
    example p: f32[5], q: f32[4], r: f32[3]
  end
  shape v: [A, _]
  shape w: [B, _]
  shape u: [C, _]
  =>
  weight = concat(v, w, u) {axis: 0}
  either bias without
    all = linear(x, weight)
  or with
    bias = concat(p, q, r) {axis: 0}
    all = linear(x, weight, bias)
  end
  a, b, c = split(all) {axis: -1, sizes: [A, B, C]}

rule merge_conv2d
  doc "convolutions with windows of one size that read the same"
  choice "one large product and one gradient of what they read, but results are copied apart"
  either bias without
    a = conv2d(x, v) {activation: none, strides: [s, t], dilations: [d, e], pads: [i, j, k, l]}
    b = conv2d(x, w) {activation: none, strides: [s, t], dilations: [d, e], pads: [i, j, k, l]}
    example x: f32[2, 3, 8, 7], v: f32[4, 3, 3, 3], w: f32[2, 3, 3, 3]
  or with
    a = conv2d(x, v, p) {activation: none, strides: [s, t], dilations: [d, e], pads: [i, j, k, l]}
    b = conv2d(x, w, q) {activation: none, strides: [s, t], dilations: [d, e], pads: [i, j, k, l]}
    example x: f32[2, 3, 8, 7], v: f32[4, 3, 3, 3], w: f32[2, 3, 3, 3], p: f32[4], q: f32[2]
  end
  shape v: [A, I, H, W]
  shape w: [B, I, H, W]
  example s: 1, t: 2, d: 1, e: 1, i: 1, j: 0, k: 1, l: 2
  =>
  weight = concat(v, w) {axis: 0}
  either bias without
    all = conv2d(x, weight) {*: b}
  or with
    bias = concat(p, q) {axis: 0}
    all = conv2d(x, weight, bias) {*: b}
  end
  a, b = split(all) {axis: 1, sizes: [A, B]}
)rules";

// Sums and concatenations.
constexpr char kJoined[] = R"rules(
rule concat_of_linear
  doc "linear layers that read the same and whose results are concatenated"
  choice "one large product and no copy, but the columns of a part may be of both"
  a = linear(x, v) {activation: none}
  b = linear(x, w) {activation: none}
  y = concat(a, b) {axis: last}
  =>
  weight = concat(v, w) {axis: 0}
  y = linear(x, weight)
  example x: f32[3, 8], v: f32[5, 8], w: f32[4, 8]

rule sum_of_linear
  doc "the sum of two linear layers is one that reads both inputs"
  choice "one large product and no sum, but the inputs are copied together"
  a = linear(x, v) {activation: none}
  b = linear(z, w) {activation: none}
  y = add(a, b)
  shape x: [N..., _]
  shape z: [N..., _]
  =>
  weight = concat(v, w) {axis: 1}
  both = concat(x, z) {axis: -1}
  y = linear(both, weight)
  example x: f32[2, 3, 8], z: f32[2, 3, 6], v: f32[5, 8], w: f32[5, 6]

rule activation_of_concat
  doc "an activation of a concatenation"
  choice "layers in front may take up the activation, but there is one operator more"
  t = concat(a, b) {axis: k}
  either function relu
    y = relu(t)
  or sigmoid
    y = sigmoid(t)
  or tanh
    y = tanh(t)
  end
  =>
  either function relu
    p = relu(a)
    q = relu(b)
  or sigmoid
    p = sigmoid(a)
    q = sigmoid(b)
  or tanh
    p = tanh(a)
    q = tanh(b)
  end
  y = concat(p, q) {axis: k}
  example a: f32[3, 5], b: f32[3, 4], k: 1

rule sum_of_three
  doc "a sum of three as one operator"
  choice "passes over the sum once less, but its first part cannot begin early"
  s = add(a, b)
  y = add(s, c)
  shape a: [N...]
  shape b: [N...]
  shape c: [N...]
  =>
  y = add_n(a, b, c)
  example a: f32[3, 5], b: f32[3, 5], c: f32[3, 5]

rule sums_in_another_order
  doc "(a + b) + c = a + (b + c)"
  choice "operands that are there early, or lie alike, are added first"
  s = add(a, b)
  y = add(s, c)
  shape a: [N...]
  shape b: [N...]
  shape c: [N...]
  =>
  r = add(b, c)
  y = add(a, r)
  example a: f32[3, 5], b: f32[3, 5], c: f32[3, 5]
)rules";

}  // namespace

absl::StatusOr<std::vector<RewriteRule>> SearchRules(const OpRegistry& registry) {
  absl::StatusOr<std::vector<RewriteRule>> rules = FusionRules(registry);
  if (!rules.ok()) return rules.status();
  std::erase_if(*rules, [](const RewriteRule& rule) { return rule.choice.empty(); });
  for (const char* text : {kApart, kSiblings, kJoined}) {
    absl::StatusOr<std::vector<RewriteRule>> parsed = ParseRules(registry, text);
    if (!parsed.ok()) return parsed.status();
    for (RewriteRule& rule : *parsed) rules->push_back(std::move(rule));
  }
  return rules;
}

}  // namespace espalier
