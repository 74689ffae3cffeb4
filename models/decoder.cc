#include "models/decoder.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

class DecoderGraph {
 public:
  DecoderGraph(const Decoder& decoder, ModelBuilder& builder)
      : d_(decoder), s_(decoder.sizes), b_(builder) {}

  ValueId Logits() {
    ValueId x = b_.TokenEmbedding(kEmbedding, s_.vocab_size, s_.hidden);
    if (d_.embedding_scale != 1) x = Scale(x, d_.embedding_scale);
    for (int64_t i = 0; i < s_.layers; ++i) x = Layer(static_cast<int>(i), x);
    x = Norm("model.norm", x);
    x = b_.Logits(x, s_.hidden, d_.tied ? kEmbedding : "");
    if (d_.logit_softcap > 0) {
      x = Scale(x, 1 / d_.logit_softcap);
      x = Scale(b_.Op("tanh", {x}), d_.logit_softcap);
    }
    // Older files store derived values, too.
    b_.Ignore({".rotary_emb.inv_freq"});
    return x;
  }

 private:
  static constexpr char kEmbedding[] = "model.embed_tokens";

  ValueId Scale(ValueId x, double by) { return b_.Op("multiply_scalar", {x}, {{"value", by}}); }

  ValueId Norm(const std::string& name, ValueId x) {
    return b_.RmsNorm(name, x, s_.hidden, d_.norm_epsilon, d_.norm_add);
  }

  ValueId Layer(int i, ValueId x) {
    const std::string p = absl::StrCat("model.layers.", i, ".");
    ValueId h = Attention(i, p + "self_attn.", Norm(p + "input_layernorm", x));
    if (d_.post_norms) h = Norm(p + "post_attention_layernorm", h);
    x = b_.Add(x, h);
    h = Norm(p + (d_.post_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm"), x);
    h = d_.layers[static_cast<size_t>(i)].experts ? Experts(p, h) : Mlp(p + "mlp.", h);
    if (d_.post_norms) h = Norm(p + "post_feedforward_layernorm", h);
    return b_.Add(x, h);
  }

  ValueId Attention(int i, const std::string& p, ValueId x) {
    const DecoderLayer& layer = d_.layers[static_cast<size_t>(i)];
    const int64_t q_size = s_.heads * s_.head_dim, kv_size = s_.kv_heads * s_.head_dim;
    const auto project = [&](const char* name, int64_t begin, int64_t size) {
      LinearOptions options{.bias = d_.qkv_bias};
      if (d_.fused) options.fused = {p + "qkv_proj", q_size + 2 * kv_size, {{begin, begin + size}}};
      return b_.Linear(p + name, x, size, s_.hidden, options);
    };
    ValueId q = project("q_proj", 0, q_size);
    ValueId k = project("k_proj", q_size, kv_size);
    const ValueId v = project("v_proj", q_size + kv_size, kv_size);
    if (d_.head_norms) {
      q = b_.RmsNorm(p + "q_norm", q, s_.head_dim, d_.norm_epsilon, d_.norm_add, s_.heads);
      k = b_.RmsNorm(p + "k_norm", k, s_.head_dim, d_.norm_epsilon, d_.norm_add, s_.kv_heads);
    }
    const Rope& rope = d_.ropes[static_cast<size_t>(layer.rope)];
    q = b_.Rotary(q, rope);
    k = b_.Rotary(k, rope);
    const ValueId y = b_.Attention(i, q, k, v,
                                   {.heads = s_.heads,
                                    .kv_heads = s_.kv_heads,
                                    .head_dim = s_.head_dim,
                                    .scale = d_.attention_scale,
                                    .window = layer.window,
                                    .softcap = d_.attention_softcap});
    return b_.Linear(p + "o_proj", y, s_.hidden, q_size,
                     {.bias = d_.output_bias, .residual = true});
  }

  ValueId Mlp(const std::string& p, ValueId x) {
    const int64_t size = d_.intermediate;
    const auto half = [&](const char* name, int64_t begin) {
      LinearOptions options{.bias = d_.mlp_bias};
      if (d_.fused) options.fused = {p + "gate_up_proj", 2 * size, {{begin, begin + size}}};
      return b_.Linear(p + name, x, size, s_.hidden, options);
    };
    // Adjacent, so that they can be fused.
    const ValueId gate = half("gate_proj", 0), up = half("up_proj", size);
    const ValueId gated = b_.Op("multiply", {b_.Activation(d_.activation, gate), up});
    return b_.Linear(p + "down_proj", gated, s_.hidden, size,
                     {.bias = d_.mlp_bias, .residual = true});
  }

  // The weights of all experts in one tensor [experts, out, in].
  ValueId ExpertWeights(const std::string& p, const std::string& name, int64_t out, int64_t in) {
    const DecoderExperts& e = d_.experts;
    WeightSource source;
    for (int64_t i = 0; i < e.count; ++i) {
      source.pieces.push_back(
          {absl::StrCat(p, e.experts, ".", i, ".", name, ".weight"), {out, in}, false, 0, out});
    }
    return b_.Parameter(absl::StrCat(p, e.experts, ".", name, ".weight"), {e.count, out, in},
                        {Initializer::kNormal, 0.02}, std::move(source));
  }

  ValueId Experts(const std::string& p, ValueId x) {
    const DecoderExperts& e = d_.experts;
    ValueId scores = b_.Linear(p + e.router, x, e.count, s_.hidden);
    // The largest logits are the most probable experts, and a softmax over the chosen ones equals
    // the normalized softmax over all.
    const Attributes top = {{"k", e.chosen}};
    const ValueId assign = b_.Op("arg_top_k", {scores}, top);
    if (!e.normalized) scores = b_.Op("softmax", {scores});
    ValueId gates = b_.graph().OpN("top_k", 2, {scores}, top)[0];
    if (e.normalized) gates = b_.Op("softmax", {gates});
    const ValueId gate =
        b_.Op("expert_linear", {x, ExpertWeights(p, e.gate, e.intermediate, s_.hidden), assign});
    const ValueId up =
        b_.Op("expert_linear", {x, ExpertWeights(p, e.up, e.intermediate, s_.hidden), assign});
    const ValueId gated = b_.Op("multiply", {b_.Activation(d_.activation, gate), up});
    return b_.Op("expert_linear",
                 {gated, ExpertWeights(p, e.down, s_.hidden, e.intermediate), assign, gates});
  }

  const Decoder& d_;
  const CommonSizes& s_;
  ModelBuilder& b_;
};

}  // namespace

int64_t DivideHeads(ConfigReader& config, int64_t hidden, int64_t heads) {
  if (hidden % heads != 0) {
    config.Fail(absl::InvalidArgumentError(absl::StrCat(
        "config.json: the hidden size is ", hidden, " with ", heads,
        " attention heads; accepted: a multiple of them, or an additional \"head_dim\"")));
  }
  return std::max<int64_t>(1, hidden / heads);
}

void CheckCounts(ConfigReader& config, int64_t layers, int64_t heads_or_experts) {
  constexpr int64_t kMost = 1 << 18;  // ten times the largest models
  if (layers <= kMost / heads_or_experts) return;
  config.Fail(absl::InvalidArgumentError(
      absl::StrCat("config.json: ", layers, " layers with ", heads_or_experts,
                   " heads or experts each; accepted: a product of at most ", kMost)));
}

CommonSizes ReadSizes(ConfigReader& config, const SizeDefaults& defaults) {
  CommonSizes s;
  s.vocab_size = config.Size("vocab_size");
  s.hidden = config.Size("hidden_size");
  s.layers = config.Size("num_hidden_layers");
  if (s.layers > 4096) config.Refuse("num_hidden_layers", "1 to 4096");
  s.heads = config.Size("num_attention_heads");
  CheckCounts(config, s.layers, s.heads);
  const bool grouped = defaults.kv_heads > 0 && !config.HasOrIsNull("num_key_value_heads");
  s.kv_heads = config.Size("num_key_value_heads", grouped ? defaults.kv_heads : s.heads);
  if (s.heads % s.kv_heads != 0) {
    config.Refuse("num_key_value_heads",
                  absl::StrCat("a divisor of num_attention_heads (", s.heads, ")"));
  }
  s.head_dim = config.Has("head_dim") || defaults.head_dim > 0
                   ? config.Size("head_dim", defaults.head_dim)
                   : DivideHeads(config, s.hidden, s.heads);
  if (s.heads * s.head_dim > (int64_t{1} << 24)) {
    config.Refuse("head_dim", "num_attention_heads * head_dim of at most 2^24");
  }
  s.max_positions =
      config.Int("max_position_embeddings", defaults.max_positions, 1, int64_t{1} << 30);
  return s;
}

Decoder ReadDecoder(ConfigReader& config, const DecoderDefaults& defaults) {
  Decoder d;
  d.sizes = ReadSizes(config, {defaults.max_positions, defaults.kv_heads, defaults.head_dim});
  d.intermediate = config.Size("intermediate_size");
  d.norm_epsilon = config.Positive("rms_norm_eps", defaults.norm_epsilon);
  d.activation = ReadActivation(config, "hidden_act", "silu");
  d.tied = config.Flag("tie_word_embeddings", defaults.tied);
  d.ropes = {ReadRope(config, d.sizes.head_dim,
                      {.theta = defaults.theta,
                       .max_positions = d.sizes.max_positions,
                       .partial = config.Positive("partial_rotary_factor", 1),
                       .layers = defaults.rope_by_layers ? "full_attention" : "",
                       .original_positions = defaults.original_positions})};
  d.layers.resize(static_cast<size_t>(config.status().ok() ? d.sizes.layers : 0));
  return d;
}

void ReadExpertCounts(ConfigReader& config, int64_t count, int64_t chosen, Decoder* decoder) {
  DecoderExperts& experts = decoder->experts;
  experts.count = config.Int(config.OneOf({"num_local_experts", "num_experts"}), count, 1, 4096);
  experts.chosen = config.Int("num_experts_per_tok", chosen, 1, 4096);
  CheckCounts(config, decoder->sizes.layers, experts.count);
  if (experts.chosen > experts.count) {
    config.Refuse("num_experts_per_tok",
                  absl::StrCat("at most as many as there are experts (", experts.count, ")"));
  }
}

int64_t ReadWindow(ConfigReader& config, int64_t otherwise) {
  return config.Int("sliding_window", config.HasOrIsNull("sliding_window") ? 0 : otherwise, 1,
                    int64_t{1} << 30);
}

void ReadWindows(ConfigReader& config, int64_t window, const std::vector<bool>& is_sliding,
                 Decoder* decoder) {
  const std::vector<std::string> types = config.Texts("layer_types");
  if (config.Has("layer_types") && types.size() != decoder->layers.size()) {
    config.Refuse("layer_types",
                  absl::StrCat("one type for each of the ", decoder->layers.size(), " layers"));
    return;
  }
  for (size_t i = 0; i < decoder->layers.size(); ++i) {
    bool sliding = i < is_sliding.size() && is_sliding[i];
    if (!types.empty()) {
      sliding = types[i] == "sliding_attention";
      if (!sliding && types[i] != "full_attention") {
        config.Refuse("layer_types", "\"full_attention\" and \"sliding_attention\"",
                      /*unsupported=*/true);
        return;
      }
    }
    if (sliding) decoder->layers[i].window = window;
  }
}

LanguageModel ToModel(Decoder decoder) {
  LanguageModel model;
  model.facts.vocab_size = decoder.sizes.vocab_size;
  model.facts.max_positions = decoder.sizes.max_positions;
  model.facts.layers = decoder.sizes.layers;
  for (const Rope& rope : decoder.ropes) {
    model.facts.max_positions = std::max(model.facts.max_positions, rope.max_positions);
    if (rope.by_length()) model.facts.short_positions = rope.short_positions;
    model.facts.dynamic_rope = model.facts.dynamic_rope || rope.dynamic_factor > 0;
  }
  model.facts.experts = std::any_of(decoder.layers.begin(), decoder.layers.end(),
                                    [](const DecoderLayer& layer) { return layer.experts; });
  model.build = [decoder = std::make_shared<const Decoder>(std::move(decoder))](
                    ModelBuilder& builder) { return DecoderGraph(*decoder, builder).Logits(); };
  return model;
}

}  // namespace espalier
