#include "ops/models/serving_builder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Hugging Face's names and ours.
struct Activated {
  const char* name;
  const char* op;
  const char* approximate;  // of gelu
};
constexpr Activated kActivations[] = {
    {"silu", "silu", ""},          {"swish", "silu", ""},
    {"relu", "relu", ""},          {"gelu", "gelu", "none"},
    {"tanh", "tanh", ""},          {"gelu_python", "gelu", "none"},
    {"sigmoid", "sigmoid", ""},    {"gelu_new", "gelu", "tanh"},
    {"gelu_fast", "gelu", "tanh"}, {"gelu_pytorch_tanh", "gelu", "tanh"}};

const Activated* FindActivation(const std::string& name) {
  for (const Activated& a : kActivations) {
    if (name == a.name) return &a;
  }
  return nullptr;
}

}  // namespace

ServingBuilder::ServingBuilder(const OpRegistry& registry, const LanguageModel& model,
                               const ServingShape& shape)
    : shape_(shape),
      vocab_size_(model.facts.vocab_size),
      max_positions_(model.facts.max_positions),
      b_(registry, absl::StrCat(model.facts.family, "_serving")) {
  b_.Metadata("family", model.facts.family);
  b_.Metadata("config", model.facts.config);
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

ValueId ServingBuilder::Parameter(const std::string& name, Dims dims, WeightSource source) {
  if (!source.pieces.empty()) weights_.sources[name] = std::move(source);
  return b_.Parameter(name, DType::kF32, std::move(dims), {Initializer::kNormal, 0.02});
}

ValueId ServingBuilder::Embedding(const std::string& name, ValueId ids, int64_t count, int64_t size,
                                  int64_t skipped) {
  const std::string tensor = name + ".weight";
  WeightSource source;
  if (skipped > 0) {
    source.pieces = {{tensor, {count + skipped, size}, false, skipped, count + skipped}};
  }
  const ValueId table = Parameter(tensor, {count, size}, std::move(source));
  tables_[name] = table;
  return Op("embedding", {ids, table}, {}, name);
}

ValueId ServingBuilder::Table(const std::string& name) const {
  const auto it = tables_.find(name);
  return it == tables_.end() ? kNoValue : it->second;
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
  std::vector<ValueId> inputs = {x,
                                 Parameter(name + ".weight", {out, in}, source(".weight", true))};
  if (options.bias) inputs.push_back(Parameter(name + ".bias", {out}, source(".bias", false)));
  return Op("linear", inputs, {}, name);
}

ValueId ServingBuilder::Logits(ValueId hidden, int64_t size, const std::string& tied) {
  const ValueId rows = Op("gather", {hidden, logit_rows_}, {{"axis", int64_t{0}}});
  b_.Output("hidden", rows);
  if (tied.empty())
    return Op("linear", {rows, Parameter("lm_head.weight", {vocab_size_, size})}, {}, "lm_head");
  Ignore({"lm_head.weight"});
  return Op("linear", {rows, Table(tied)}, {}, "lm_head");
}

ValueId ServingBuilder::LayerNorm(const std::string& name, ValueId x, int64_t size, double epsilon,
                                  bool weight, bool bias) {
  std::vector<ValueId> inputs = {x};
  if (weight || bias) {
    inputs.push_back(weight ? Parameter(name + ".weight", {size}) : kNoValue);
  }
  if (bias) inputs.push_back(Parameter(name + ".bias", {size}));
  return Op("layer_norm", inputs, {{"epsilon", epsilon}}, name);
}

ValueId ServingBuilder::RmsNorm(const std::string& name, ValueId x, int64_t size, double epsilon,
                                double add, int64_t heads) {
  const std::string tensor = name + ".weight";
  WeightSource source;
  if (add != 0) source = {{{tensor, {size}, false, 0, size}}, add};
  const ValueId weight = Parameter(tensor, {size}, std::move(source));
  if (heads == 1) return Op("rms_norm", {x, weight}, {{"epsilon", epsilon}}, name);
  // Dimension 0, the rows, stays itself: it is as long as the batch.
  x = Op("reshape", {x}, {{"shape", std::vector<int64_t>{0, heads, size}}});
  x = Op("rms_norm", {x, weight}, {{"epsilon", epsilon}}, name);
  return Op("reshape", {x}, {{"shape", std::vector<int64_t>{0, heads * size}}});
}

ValueId ServingBuilder::Activation(const std::string& hf_name, ValueId x) {
  const Activated* a = FindActivation(hf_name);
  if (a == nullptr) return kNoValue;
  Attributes attributes;
  if (a->approximate[0] != 0) attributes.Set("approximate", std::string(a->approximate));
  return Op(a->op, {x}, std::move(attributes));
}

ValueId ServingBuilder::Rotary(ValueId x, const Rope& rope) {
  const int64_t longest = shape_.max_positions > 0 ? shape_.max_positions : max_positions_;
  const bool is_long = !rope.long_frequencies.empty() && longest > rope.short_positions;
  return Op("rotary", {x, positions_},
            {{"head_dim", rope.head_dim},
             {"theta", rope.theta},
             {"frequencies", is_long ? rope.long_frequencies : rope.frequencies},
             {"magnitude", rope.magnitude}});
}

ValueId ServingBuilder::Attention(int layer, ValueId q, ValueId k, ValueId v,
                                  const AttentionOptions& options) {
  const std::string p = absl::StrCat("layers.", layer, ".");
  const Dims cache = {shape_.kv_slots, options.kv_heads * options.head_dim};
  const ValueId k_cache = b_.State(p + "k_cache", shape_.kv_format, cache);
  const ValueId v_cache = b_.State(p + "v_cache", shape_.kv_format, cache);
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
  if (shape_.kv_format == DType::kI8) {
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

ValueId ServingBuilder::Op(const std::string& op, const std::vector<ValueId>& inputs,
                           Attributes attributes, const std::string& name) {
  return b_.Op(op, inputs, std::move(attributes), name);
}

void ServingBuilder::Ignore(std::vector<std::string> endings) {
  weights_.ignored.insert(weights_.ignored.end(), endings.begin(), endings.end());
}

absl::StatusOr<ServingModel> ServingBuilder::Finish(ValueId logits) {
  b_.Output("logits", logits);
  absl::StatusOr<Graph> graph = b_.Build();
  if (!graph.ok()) return graph.status();
  return ServingModel{*std::move(graph), std::move(weights_)};
}

std::string ReadActivation(ConfigReader& config, const std::string& field,
                           const std::string& otherwise) {
  const std::string name = config.Text(field, otherwise);
  if (FindActivation(name) != nullptr) return name;
  std::string accepted;
  for (const Activated& a : kActivations) {
    absl::StrAppend(&accepted, accepted.empty() ? "\"" : ", \"", a.name, "\"");
  }
  config.Refuse(field, accepted, /*unsupported=*/true);
  return otherwise;
}

std::vector<float> AlibiSlopes(int64_t heads) {
  const int64_t whole =
      static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(1, heads))));
  std::vector<float> slopes;
  const auto slope = [](int64_t power, int64_t of) {
    return static_cast<float>(
        std::exp2(-8.0 * static_cast<double>(power) / static_cast<double>(of)));
  };
  for (int64_t i = 1; i <= whole; ++i) slopes.push_back(slope(i, whole));
  // The others get every second slope of twice as many heads.
  for (int64_t i = 1; static_cast<int64_t>(slopes.size()) < heads; i += 2) {
    slopes.push_back(slope(i, 2 * whole));
  }
  return slopes;
}

}  // namespace espalier
