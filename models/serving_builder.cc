#include "models/serving_builder.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace espalier {

ServingBuilder::ServingBuilder(const OpRegistry& registry, const LanguageModel& model,
                               const ServingShape& shape)
    : ModelBuilder(registry, model,
                   {.graph_name = absl::StrCat(model.facts.family, "_serving"),
                    .leading = 1,
                    .longest_sequence =
                        shape.max_positions > 0 ? shape.max_positions : model.facts.max_positions}),
      shape_(shape) {
  const auto input = [&](const std::string& name, int64_t length, const char* dynamic) {
    if (dynamic != nullptr) b_.Metadata("dynamic." + name, dynamic);
    return b_.Input(name, DType::kI32, {length});
  };
  tokens_ = input("tokens", shape.max_rows, "rows");
  positions_ = input("positions", shape.max_rows, "rows");
  slots_ = input("slots", shape.max_rows, "rows");
  row_sequence_ = input("row_sequence", shape.max_rows, "rows");
  row_prefix_ = input("row_prefix", shape.max_rows, "rows");
  ancestor_start_ = input("ancestor_start", int64_t{shape.max_rows} + 1, nullptr);
  ancestor_slots_ = input("ancestor_slots", shape.max_ancestor_slots, nullptr);
  sequence_start_ = input("sequence_start", int64_t{shape.max_sequences} + 1, nullptr);
  sequence_slots_ = input("sequence_slots", shape.max_context_slots, nullptr);
  logit_rows_ = input("logit_rows", shape.max_output_rows, "output_rows");
}

ValueId ServingBuilder::Parameter(const std::string& name, Dims dims, Initializer,
                                  WeightSource source) {
  if (!source.pieces.empty()) weights_.sources[name] = std::move(source);
  return b_.Parameter(name, DType::kF32, std::move(dims), {Initializer::kNormal, 0.02});
}

ValueId ServingBuilder::PositionEmbedding(const std::string& name, int64_t count, int64_t size,
                                          int64_t skipped) {
  const std::string tensor = name + ".weight";
  WeightSource source;
  if (skipped > 0) {
    source.pieces = {{tensor, {count + skipped, size}, false, skipped, count + skipped}};
  }
  const ValueId table = Parameter(tensor, {count, size}, {}, std::move(source));
  return Op("embedding", {positions_, table}, {}, name);
}

ValueId ServingBuilder::Linear(const std::string& name, ValueId x, int64_t out, int64_t in,
                               const LinearOptions& options) {
  const auto source = [&](const std::string& suffix, bool matrix) {
    WeightSource made;
    const FusedRows& fused = options.fused;
    if (fused.tensor.empty() && !(matrix && options.transposed)) return made;
    const std::string tensor = absl::StrCat(fused.tensor.empty() ? name : fused.tensor, suffix);
    const int64_t rows = fused.tensor.empty() ? out : fused.out;
    Dims dims = {rows};
    if (matrix) dims = options.transposed ? Dims{in, rows} : Dims{rows, in};
    const bool transposed = matrix && options.transposed;
    if (fused.rows.empty()) made.pieces.push_back({tensor, dims, transposed, 0, rows});
    for (const auto& [begin, end] : fused.rows) {
      made.pieces.push_back({tensor, dims, transposed, begin, end});
    }
    return made;
  };
  std::vector<ValueId> inputs = {
      x, Parameter(name + ".weight", {out, in}, {}, source(".weight", true))};
  if (options.bias) inputs.push_back(Parameter(name + ".bias", {out}, {}, source(".bias", false)));
  return Op("linear", inputs, {}, name);
}

ValueId ServingBuilder::Logits(ValueId hidden, int64_t size, const std::string& tied) {
  const ValueId rows = Op("gather", {hidden, logit_rows_}, {{"axis", int64_t{0}}});
  b_.Output("hidden", rows);
  if (tied.empty())
    return Op("linear", {rows, Parameter("lm_head.weight", {facts_.vocab_size, size}, {})}, {},
              "lm_head");
  Ignore({"lm_head.weight"});
  return Op("linear", {rows, Table(tied)}, {}, "lm_head");
}

ValueId ServingBuilder::NormWeight(const std::string& tensor, int64_t size, double add) {
  WeightSource source;
  if (add != 0) source = {{{tensor, {size}, false, 0, size}}, add};
  return Parameter(tensor, {size}, {}, std::move(source));
}

ValueId ServingBuilder::Attention(int layer, ValueId q, ValueId k, ValueId v,
                                  const AttentionOptions& options) {
  const std::string p = absl::StrCat("layers.", layer, ".");
  const Dims cache = {shape_.kv_slots, options.kv_heads * options.head_dim};
  const ValueId k_cache = b_.State(p + "k_cache", shape_.kv_cache_dtype, cache);
  const ValueId v_cache = b_.State(p + "v_cache", shape_.kv_cache_dtype, cache);
  std::vector<ValueId> inputs = {q,
                                 k,
                                 v,
                                 k_cache,
                                 v_cache,
                                 slots_,
                                 row_sequence_,
                                 row_prefix_,
                                 ancestor_start_,
                                 ancestor_slots_,
                                 sequence_start_,
                                 sequence_slots_};
  if (!options.alibi_slopes.empty()) {
    std::string bytes(options.alibi_slopes.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), options.alibi_slopes.data(), bytes.size());
    inputs.push_back(b_.Constant(p + "alibi_slopes", DType::kF32,
                                 {static_cast<int64_t>(options.alibi_slopes.size())},
                                 std::move(bytes)));
  }
  if (shape_.kv_cache_dtype == DType::kI8) {
    if (options.alibi_slopes.empty()) inputs.push_back(kNoValue);
    for (const char* scale : {"k_scale", "v_scale"}) {
      inputs.push_back(b_.State(p + scale, DType::kF32, {shape_.kv_slots, options.kv_heads}));
    }
  }
  return b_.Op("paged_attention", inputs,
               {{"head_dim", options.head_dim},
                {"scale", options.scale},
                {"window", options.window},
                {"softcap", options.softcap},
                {"alibi", std::string(options.alibi_bf16 ? "bf16" : "relative")}},
               p + "attention");
}

absl::StatusOr<ServingModel> ServingBuilder::Finish(ValueId logits) {
  b_.Output("logits", logits);
  absl::StatusOr<Graph> graph = b_.Build();
  if (!graph.ok()) return graph.status();
  return ServingModel{*std::move(graph), std::move(weights_)};
}

}  // namespace espalier
