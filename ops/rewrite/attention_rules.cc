#include "ops/rewrite/attention_rules.h"

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Variants of where the scale is applied: scores s of queries qh and transposed keys kt.
constexpr char kScores[] = R"rules(
  either scale divided
    a = matmul(qh, kt)
    s = divide_scalar(a) {value: c}
    let scale = 1 / c
  or multiplied
    a = matmul(qh, kt)
    s = multiply_scalar(a) {value: c}
    let scale = c
  or one
    s = matmul(qh, kt)
    let scale = 1
  or query_divided
    a = divide_scalar(qh) {value: c}
    s = matmul(a, kt)
    let scale = 1 / c
  or query_multiplied
    a = multiply_scalar(qh) {value: c}
    s = matmul(a, kt)
    let scale = c
  or both                             # PyTorch, by the root of the scale
    a = multiply_scalar(qh) {value: c}
    b = multiply_scalar(kt) {value: d}
    s = matmul(a, b)
    let scale = c * d
  end
  require scale > 0                   # 0 would ask for the default
  example c: 1.5, d: 0.75
)rules";

// Attention takes masks [S, T], [B, S, T] and [B, H, S, T]. If masked scores are replaced by a
// number, only the causal mask is equivalent: with other masks a row may see nothing. It would get
// the mean of v and no gradient for q and k, but zero under a bool mask, and a gradient under an
// additive one.
constexpr char kBatchFirst[] = R"rules(
rule attention
  doc "multi-head attention, spelled out for q[B, S, H * D], k and v[B, T, H * D]"
  q4 = reshape(q)
  k4 = reshape(k)
  v4 = reshape(v)
  shape q: [B, S, _]
  shape k: [B, T, _]
  shape v: [B, T, _]
  shape q4: [B, S, H, D]
  shape k4: [B, T, H, D]
  shape v4: [B, T, H, D]
  qh = transpose(q4) {perm: [0, 2, 1, 3]}
  vh = transpose(v4) {perm: [0, 2, 1, 3]}
  either keys once
    kt = transpose(k4) {perm: [0, 2, 3, 1]}
  or twice
    kh = transpose(k4) {perm: [0, 2, 1, 3]}
    kt = transpose(kh) {perm: [0, 1, 3, 2]}
  end
)rules";

constexpr char kBatchFirstMasks[] = R"rules(
  either mask none
    p = softmax(s) {axis: last}
  or causal
    n = add(s, m)
    p = softmax(n) {axis: last}
    mask m
    shape m: [..., S, T]
    example m: f32[4, 5]
  or causal_where
    n = where(m, s, low)
    p = softmax(n) {axis: last}
    mask m
    shape m: [..., S, T]
    number low
    require low < -1e9
    example m: bool[1, 1, 4, 5], low: -3e38
  or rows
    n = add(s, m)
    p = softmax(n) {axis: last}
    shape m: f32[S, T]
    example m: f32[4, 5]
  or shared
    n = add(s, m)
    p = softmax(n) {axis: last}
    shape m: f32[1, 1, S, T]
    example m: f32[1, 1, 4, 5]
  or batch
    n = add(s, m)
    p = softmax(n) {axis: last}
    shape m: f32[B, 1, S, T]
    example m: f32[2, 1, 4, 5]
  or heads
    n = add(s, m)
    p = softmax(n) {axis: last}
    shape m: f32[B, H, S, T]
    example m: f32[2, 2, 4, 5]
  or padding
    n = add(s, m)
    p = softmax(n) {axis: last}
    shape m: f32[B, 1, 1, T]
    example m: f32[2, 1, 1, 5]
  end
  o = matmul(p, vh)
  t = transpose(o) {perm: [0, 2, 1, 3]}
  y = reshape(t)
  shape y: [B, S, _]
  example q: f32[2, 4, 6], k: f32[2, 5, 6], v: f32[2, 5, 6]
  example q4.shape: [0, 4, 2, 3], k4.shape: [0, 5, 2, 3], v4.shape: [0, 5, 2, 3]
  example y.shape: [0, 4, 6]
  =>
  either mask none
    y = attention(q, k, v) {head_dim: D, scale: scale}
  or causal
    y = attention(q, k, v) {head_dim: D, scale: scale, causal: true}
  or causal_where
    y = attention(q, k, v) {head_dim: D, scale: scale, causal: true}
  or rows
    y = attention(q, k, v, m) {head_dim: D, scale: scale}
  or shared
    mask = reshape(m) {shape: [S, T]}
    y = attention(q, k, v, mask) {head_dim: D, scale: scale}
  or batch
    mask = reshape(m) {shape: [0, S, T]}
    y = attention(q, k, v, mask) {head_dim: D, scale: scale}
  or heads
    y = attention(q, k, v, m) {head_dim: D, scale: scale}
  or padding
    m3 = reshape(m) {shape: [0, 1, T]}
    rows = fill() {dims: [S, 1], value: 0}
    mask = add(m3, rows)
    y = attention(q, k, v, mask) {head_dim: D, scale: scale}
  end
)rules";

constexpr char kSequenceFirst[] = R"rules(
rule attention_sequence_first
  doc "attention of torch.nn.MultiheadAttention: q[S, B, H * D], k and v[T, B, H * D]"
  q3 = reshape(q)
  k3 = reshape(k)
  v3 = reshape(v)
  shape q: [S, B, _]
  shape k: [T, B, _]
  shape v: [T, B, _]
  shape q3: [S, N, D]
  shape k3: [T, N, D]
  shape v3: [T, N, D]
  qh = transpose(q3) {perm: [1, 0, 2]}
  vh = transpose(v3) {perm: [1, 0, 2]}
  either keys once
    kt = transpose(k3) {perm: [1, 2, 0]}
  or twice
    kh = transpose(k3) {perm: [1, 0, 2]}
    kt = transpose(kh) {perm: [0, 2, 1]}
  end
)rules";

constexpr char kSequenceFirstMasks[] = R"rules(
  either mask none
    p = softmax(s) {axis: last}
  or causal
    n = add(s, m)
    p = softmax(n) {axis: last}
    mask m
    shape m: [..., S, T]
    example m: f32[4, 5]
  or rows
    n = add(s, m)
    p = softmax(n) {axis: last}
    shape m: f32[S, T]
    example m: f32[4, 5]
  or shared
    n = add(s, m)
    p = softmax(n) {axis: last}
    shape m: f32[1, S, T]
    example m: f32[1, 4, 5]
  end
  o = matmul(p, vh)
  t = transpose(o) {perm: [1, 0, 2]}
  y = reshape(t)
  example q: f32[4, 2, 6], k: f32[5, 2, 6], v: f32[5, 2, 6]
  example q3.shape: [4, 4, 3], k3.shape: [5, 4, 3], v3.shape: [5, 4, 3], y.shape: [8, 6]
  =>
  qb = transpose(q) {perm: [1, 0, 2]}
  kb = transpose(k) {perm: [1, 0, 2]}
  vb = transpose(v) {perm: [1, 0, 2]}
  either mask none
    ab = attention(qb, kb, vb) {head_dim: D, scale: scale}
  or causal
    ab = attention(qb, kb, vb) {head_dim: D, scale: scale, causal: true}
  or rows
    ab = attention(qb, kb, vb, m) {head_dim: D, scale: scale}
  or shared
    mask = reshape(m) {shape: [S, T]}
    ab = attention(qb, kb, vb, mask) {head_dim: D, scale: scale}
  end
  as = transpose(ab) {perm: [1, 0, 2]}
  y = reshape(as) {*: y}
)rules";

}  // namespace

std::string AttentionRules() {
  return absl::StrCat(kBatchFirst, kScores, kBatchFirstMasks, kSequenceFirst, kScores,
                      kSequenceFirstMasks);
}

}  // namespace espalier
