// Attention over whole sequences, for training.
#include <cmath>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "models/training_builder.h"

namespace espalier {
namespace {

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace

ValueId TrainingBuilder::Floats(const std::string& name, Dims dims,
                                const std::vector<float>& values) {
  return b_.Constant(name, DType::kF32, std::move(dims), Bytes(values));
}

ValueId TrainingBuilder::RelativePositions() {
  if (distance_ != kNoValue) return distance_;
  std::vector<int32_t> positions(static_cast<size_t>(length_));
  std::iota(positions.begin(), positions.end(), 0);
  const ValueId rows = b_.Constant("rows", DType::kI32, {length_, 1}, Bytes(positions));
  const ValueId columns = b_.Constant("columns", DType::kI32, {1, length_}, Bytes(positions));
  return distance_ = b_.Op("subtract", {rows, columns}, {}, "distance");
}

ValueId TrainingBuilder::VisibilityMask(int64_t window, bool causal) {
  const auto [found, is_new] = seen_.try_emplace({window, causal}, kNoValue);
  if (!is_new) return found->second;
  const std::string name = absl::StrCat(causal ? "seen" : "window", "_", window);
  const auto number = [&](const char* what, int64_t value) {
    return b_.Constant(absl::StrCat(name, what), DType::kI32, {1},
                       Bytes<int32_t>({static_cast<int32_t>(value)}));
  };
  ValueId seen = kNoValue;
  if (window > 0)
    seen = b_.Op("less", {RelativePositions(), number(".end", window)}, {}, name + ".near");
  if (causal) {
    const ValueId before =
        b_.Op("greater_equal", {RelativePositions(), number(".begin", 0)}, {}, name + ".before");
    seen = seen == kNoValue ? before : b_.Op("logical_and", {seen, before}, {}, name);
  }
  return found->second = seen;
}

ValueId TrainingBuilder::Alibi(const AttentionOptions& options, double scale) {
  if (alibi_ != kNoValue) return alibi_;
  const ValueId slopes =
      Floats("alibi.slopes", {options.kv_heads, options.heads / options.kv_heads, 1, 1},
             options.alibi_slopes);
  const auto cast = [&](ValueId x, const char* to, const char* name) {
    return b_.Op("cast", {x}, {{"to", std::string(to)}}, name);
  };
  if (!options.alibi_bf16) {
    // A row attends to earlier keys only.
    const ValueId falling = b_.Op("multiply_scalar", {slopes}, {{"value", -1.0}}, "alibi.falling");
    const ValueId distance = cast(RelativePositions(), "f32", "alibi.distance");
    return alibi_ = b_.Op("multiply", {falling, distance}, {}, "alibi");
  }
  std::vector<float> positions(static_cast<size_t>(length_));
  std::iota(positions.begin(), positions.end(), 0.0f);
  const ValueId columns = Floats("alibi.positions", {1, length_}, positions);
  const ValueId rounded = b_.Op(
      "multiply",
      {cast(slopes, "bf16", "alibi.slopes_bf16"), cast(columns, "bf16", "alibi.positions_bf16")},
      {}, "alibi.bf16");
  return alibi_ = b_.Op("multiply_scalar", {cast(rounded, "f32", "alibi.f32")}, {{"value", scale}},
                        "alibi");
}

// [batch, tokens, kv heads * group * head_dim] -> [batch, kv heads, group, tokens, head_dim]
ValueId TrainingBuilder::Heads(ValueId x, const AttentionOptions& options, int64_t group) {
  x = Op("reshape", {x}, {{"shape", Dims{0, 0, options.kv_heads, group, options.head_dim}}});
  return Op("transpose", {x}, {{"perm", Dims{0, 2, 3, 1, 4}}});
}

ValueId TrainingBuilder::DecomposedAttention(ValueId q, ValueId k, ValueId v,
                                             const AttentionOptions& options) {
  const double scale =
      options.scale > 0 ? options.scale : 1 / std::sqrt(static_cast<double>(options.head_dim));
  q = Heads(q, options, options.heads / options.kv_heads);
  k = Heads(k, options, 1);
  v = Heads(v, options, 1);
  const auto times = [&](ValueId x, double by) {
    return Op("multiply_scalar", {x}, {{"value", by}});
  };
  ValueId scores = times(Op("matmul", {q, k}, {{"transpose_b", true}}), scale);
  if (options.softcap > 0) {
    scores = times(Op("tanh", {times(scores, 1 / options.softcap)}), options.softcap);
  }
  if (!options.alibi_slopes.empty()) scores = Add(scores, Alibi(options, scale));
  // Far below any score: its exponential is 0.
  if (unseen_ == kNoValue) unseen_ = Floats("unseen", {1}, {-1e30f});
  scores = Op("where", {VisibilityMask(options.window, /*causal=*/true), scores, unseen_});
  ValueId y = Op("matmul", {Op("softmax", {scores}), v});
  y = Op("transpose", {y}, {{"perm", Dims{0, 3, 1, 2, 4}}});
  return Op("reshape", {y}, {{"shape", Dims{0, 0, options.heads * options.head_dim}}});
}

ValueId TrainingBuilder::Attention(int layer, ValueId q, ValueId k, ValueId v,
                                   const AttentionOptions& given) {
  AttentionOptions options = given;
  if (options.window >= length_) options.window = 0;
  if (options.softcap > 0 || !options.alibi_slopes.empty())
    return DecomposedAttention(q, k, v, options);
  std::vector<ValueId> inputs = {q, k, v};
  if (options.window > 0) inputs.push_back(VisibilityMask(options.window, /*causal=*/false));
  return Op("attention", inputs,
            {{"head_dim", options.head_dim}, {"causal", true}, {"scale", options.scale}});
}

}  // namespace espalier
