#include "ops/models/llama.h"

#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "ops/graph/builder.h"

namespace espalier {
namespace {

absl::Status Refuse(const std::string& field, const std::string& found,
                    const std::string& accepted) {
  return absl::InvalidArgumentError(
      absl::StrCat("LLaMA configuration: ", field, " is ", found, "; accepted: ", accepted));
}

// What a weight that writes into the residual stream is scaled by, so that its variance does not
// grow with depth.
double ResidualScale(const LlamaConfig& config) { return 1.0 / std::sqrt(2.0 * config.num_layers); }

// The part that training and serving share: everything but attention over rows, which each
// supplies.
class LlamaBody {
 public:
  LlamaBody(GraphBuilder* builder, const LlamaConfig& config) : b_(*builder), c_(config) {}

  // Attention of layer `layer` over projected, not yet rotated q, k and v.
  using Attend = std::function<ValueId(int layer, ValueId q, ValueId k, ValueId v)>;

  // Embedding, all layers and the final norm.
  ValueId Hidden(ValueId tokens, const Attend& attend) {
    embedding_ = b_.Parameter("model.embed_tokens.weight", DType::kF32,
                              {c_.vocab_size, c_.hidden_size}, {Initializer::kNormal, 0.02});
    ValueId x = b_.Op("embedding", {tokens, embedding_}, {}, "embed_tokens");
    for (int i = 0; i < c_.num_layers; ++i) x = Layer(i, x, attend);
    return Norm("norm", x);
  }

  ValueId Logits(ValueId hidden) {
    ValueId weight = embedding_;
    if (!c_.tie_word_embeddings) {
      weight = b_.Parameter("lm_head.weight", DType::kF32, {c_.vocab_size, c_.hidden_size},
                            {Initializer::kNormal, 0.02});
    }
    return b_.Op("linear", {hidden, weight}, {}, "lm_head");
  }

 private:
  ValueId Layer(int i, ValueId x, const Attend& attend) {
    const std::string p = absl::StrCat("layers.", i, ".");
    const int64_t q_size = c_.num_heads * c_.head_dim;
    const int64_t kv_size = c_.num_kv_heads * c_.head_dim;

    ValueId h = Norm(p + "input_layernorm", x);
    ValueId q = Linear(p + "self_attn.q_proj", h, q_size, c_.hidden_size);
    ValueId k = Linear(p + "self_attn.k_proj", h, kv_size, c_.hidden_size);
    ValueId v = Linear(p + "self_attn.v_proj", h, kv_size, c_.hidden_size);
    ValueId a = attend(i, q, k, v);
    a = Linear(p + "self_attn.o_proj", a, c_.hidden_size, q_size, ResidualScale(c_));
    x = b_.Op("add", {x, a}, {}, p + "self_attn.residual");

    h = Norm(p + "post_attention_layernorm", x);
    ValueId gate = Linear(p + "mlp.gate_proj", h, c_.intermediate_size, c_.hidden_size);
    ValueId up = Linear(p + "mlp.up_proj", h, c_.intermediate_size, c_.hidden_size);
    gate = b_.Op("silu", {gate}, {}, p + "mlp.act");
    ValueId m = b_.Op("multiply", {gate, up}, {}, p + "mlp.gated");
    m = Linear(p + "mlp.down_proj", m, c_.hidden_size, c_.intermediate_size, ResidualScale(c_));
    return b_.Op("add", {x, m}, {}, p + "mlp.residual");
  }

  ValueId Norm(const std::string& name, ValueId x) {
    ValueId weight = b_.Parameter("model." + name + ".weight", DType::kF32, {c_.hidden_size},
                                  {Initializer::kOnes, 0});
    return b_.Op("rms_norm", {x, weight}, {{"epsilon", c_.rms_norm_eps}}, name);
  }

  ValueId Linear(const std::string& name, ValueId x, int64_t out, int64_t in, double scale = 1.0) {
    ValueId weight = b_.Parameter("model." + name + ".weight", DType::kF32, {out, in},
                                  {Initializer::kNormal, 0.02 * scale});
    return b_.Op("linear", {x, weight}, {}, name);
  }

  GraphBuilder& b_;
  const LlamaConfig& c_;
  ValueId embedding_ = kNoValue;
};

ValueId Rotary(GraphBuilder* b, const LlamaConfig& c, const std::string& name, ValueId x,
               ValueId positions) {
  std::vector<ValueId> inputs = {x};
  if (positions != kNoValue) inputs.push_back(positions);
  return b->Op("rotary", inputs, {{"head_dim", c.head_dim}, {"theta", c.rope_theta}}, name);
}

void Describe(GraphBuilder* b, const LlamaConfig& config) {
  b->Metadata("family", "llama");
  b->Metadata("config", ToConfigJson(config));
}

}  // namespace

absl::Status Validate(const LlamaConfig& c) {
  // Far above any model, and low enough that no product of two of them overflows.
  constexpr int64_t kMax = int64_t{1} << 30;
  const std::pair<const char*, int64_t> sizes[] = {
      {"vocab_size", c.vocab_size},
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"num_hidden_layers", c.num_layers},
      {"num_attention_heads", c.num_heads},
      {"num_key_value_heads", c.num_kv_heads},
      {"head_dim", c.head_dim},
      {"max_position_embeddings", c.max_position_embeddings}};
  for (const auto& [name, value] : sizes) {
    if (value < 1 || value > kMax) return Refuse(name, absl::StrCat(value), "1 to 2^30");
  }
  if (c.num_layers > 4096)
    return Refuse("num_hidden_layers", absl::StrCat(c.num_layers), "1 to 4096");
  if (c.num_heads % c.num_kv_heads != 0) {
    return Refuse("num_key_value_heads", absl::StrCat(c.num_kv_heads),
                  absl::StrCat("a divisor of num_attention_heads (", c.num_heads, ")"));
  }
  if (c.head_dim % 2 != 0) {
    return Refuse("head_dim", absl::StrCat(c.head_dim), "an even number (rotary embedding)");
  }
  if (c.num_heads * c.head_dim > kMax) {
    return Refuse("head_dim", absl::StrCat(c.head_dim),
                  "num_attention_heads * head_dim of at most 2^30");
  }
  if (!(c.rms_norm_eps > 0 && c.rms_norm_eps < 1)) {
    return Refuse("rms_norm_eps", absl::StrCat(c.rms_norm_eps), "above 0 and below 1");
  }
  if (!(c.rope_theta >= 1 && c.rope_theta <= 1e15)) {
    return Refuse("rope_theta", absl::StrCat(c.rope_theta), "1 to 1e15");
  }
  for (int id : c.eos) {
    if (id < 0 || id >= c.vocab_size) {
      return Refuse("eos_token_id", absl::StrCat(id), absl::StrCat("0 to ", c.vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

int64_t CountParameters(const LlamaConfig& c) {
  const int64_t q = c.num_heads * c.head_dim;
  const int64_t kv = c.num_kv_heads * c.head_dim;
  const int64_t layer = c.hidden_size * (2 * q + 2 * kv + 3 * c.intermediate_size + 2);
  const int64_t table = c.vocab_size * c.hidden_size;
  return c.num_layers * layer + c.hidden_size + (c.tie_word_embeddings ? table : 2 * table);
}

absl::StatusOr<Graph> BuildLlamaTraining(const OpRegistry& registry, const LlamaConfig& config,
                                         int sequence_length) {
  if (absl::Status s = Validate(config); !s.ok()) return s;
  if (sequence_length < 1 || sequence_length > config.max_position_embeddings) {
    return Refuse(
        "sequence length", absl::StrCat(sequence_length),
        absl::StrCat("1 to max_position_embeddings (", config.max_position_embeddings, ")"));
  }
  GraphBuilder b(registry, "llama_training");
  Describe(&b, config);
  ValueId tokens = b.Input("tokens", DType::kI32, {-1, sequence_length});
  ValueId targets = b.Input("targets", DType::kI32, {-1, sequence_length});
  LlamaBody body(&b, config);
  ValueId hidden = body.Hidden(tokens, [&](int layer, ValueId q, ValueId k, ValueId v) {
    const std::string p = absl::StrCat("layers.", layer, ".self_attn.");
    q = Rotary(&b, config, p + "q_rotary", q, kNoValue);
    k = Rotary(&b, config, p + "k_rotary", k, kNoValue);
    return b.Op("attention", {q, k, v}, {{"head_dim", config.head_dim}, {"causal", true}},
                p + "attention");
  });
  ValueId logits = body.Logits(hidden);
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {logits, targets}, {}, "loss"));
  b.Output("accuracy", b.Op("accuracy", {logits, targets}, {}, "accuracy"));
  return b.Build();
}

absl::StatusOr<Graph> BuildLlamaServing(const OpRegistry& registry, const LlamaConfig& config,
                                        const ServingShape& shape) {
  if (absl::Status s = Validate(config); !s.ok()) return s;
  const absl::StatusOr<LanguageModel> model = ReadModel(ToConfigJson(config));
  if (!model.ok()) return model.status();
  absl::StatusOr<ServingModel> serving = BuildServing(registry, *model, shape);
  if (!serving.ok()) return serving.status();
  return std::move(serving->graph);
}

}  // namespace espalier
