// GPT-2 and GPTBigCode (StarCoder 1, SantaCoder): learned positions, pre-norm, a fused q, k, v
// projection. GPT-2 stores its matrices transposed.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "models/family.h"

namespace espalier {
namespace {

struct Gpt {
  CommonSizes sizes;
  int64_t inner = 0;
  double epsilon = 1e-5;
  std::string activation;
  bool transposed = false;   // Conv1D
  bool interleaved = false;  // q, k and v of each head together; otherwise all q, all k, all v
  bool scaled = true;        // by 1 / sqrt(head_dim)
  bool scaled_by_depth = false;
  bool tied = true;
};

FusedRows GptRows(const Gpt& g, const std::string& tensor, int which) {
  const CommonSizes& s = g.sizes;
  const int64_t d = s.head_dim;
  FusedRows rows{tensor, (s.heads + 2 * s.kv_heads) * d, {}};
  if (g.interleaved) {
    for (int64_t h = 0; h < s.heads; ++h) {
      rows.rows.emplace_back((3 * h + which) * d, (3 * h + which + 1) * d);
    }
  } else {
    const int64_t begin = which == 0 ? 0 : (s.heads + (which - 1) * s.kv_heads) * d;
    rows.rows.emplace_back(begin, begin + (which == 0 ? s.heads : s.kv_heads) * d);
  }
  return rows;
}

ValueId GptLayer(const Gpt& g, ModelBuilder& b, int i, ValueId x) {
  const CommonSizes& s = g.sizes;
  const std::string p = absl::StrCat("transformer.h.", i, ".");
  ValueId h = b.LayerNorm(p + "ln_1", x, s.hidden, g.epsilon);
  const auto project = [&](const char* name, int which, int64_t heads) {
    return b.Linear(
        p + name, h, heads * s.head_dim, s.hidden,
        {.bias = true, .transposed = g.transposed, .fused = GptRows(g, p + "attn.c_attn", which)});
  };
  const auto linear = [&](const char* name, ValueId v, int64_t out, int64_t in,
                          bool residual = false) {
    return b.Linear(p + name, v, out, in,
                    {.bias = true, .transposed = g.transposed, .residual = residual});
  };
  const ValueId q = project("attn.q", 0, s.heads), k = project("attn.k", 1, s.kv_heads);
  const ValueId v = project("attn.v", 2, s.kv_heads);
  double scale = g.scaled ? 1 / std::sqrt(static_cast<double>(s.head_dim)) : 1;
  if (g.scaled_by_depth) scale /= i + 1;
  h = b.Attention(
      i, q, k, v,
      {.heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim, .scale = scale});
  x = b.Add(x, linear("attn.c_proj", h, s.hidden, s.hidden, true));
  h = linear("mlp.c_fc", b.LayerNorm(p + "ln_2", x, s.hidden, g.epsilon), g.inner, s.hidden);
  h = b.Activation(g.activation, h);
  return b.Add(x, linear("mlp.c_proj", h, s.hidden, g.inner, true));
}

ValueId BuildGpt(const Gpt& g, ModelBuilder& b) {
  const CommonSizes& s = g.sizes;
  const std::string embedding = "transformer.wte";
  ValueId x = b.TokenEmbedding(embedding, s.vocab_size, s.hidden);
  x = b.Add(x, b.PositionEmbedding("transformer.wpe", s.max_positions, s.hidden));
  for (int64_t i = 0; i < s.layers; ++i) x = GptLayer(g, b, static_cast<int>(i), x);
  x = b.LayerNorm("transformer.ln_f", x, s.hidden, g.epsilon);
  b.Ignore({".attn.bias", ".attn.masked_bias"});  // older files hold the causal mask
  return b.Logits(x, s.hidden, g.tied ? embedding : "");
}

Gpt ReadGpt(ConfigReader& config, const std::string& activation) {
  Gpt g;
  CommonSizes& s = g.sizes;
  s.vocab_size = config.Size("vocab_size");
  s.hidden = config.Size(config.OneOf({"n_embd", "hidden_size"}));
  s.layers = config.Int(config.OneOf({"n_layer", "num_hidden_layers"}), 12, 1, 4096);
  s.heads = config.Size(config.OneOf({"n_head", "num_attention_heads"}));
  s.kv_heads = s.heads;
  CheckCounts(config, s.layers, s.heads);
  s.head_dim = DivideHeads(config, s.hidden, s.heads);
  s.max_positions = config.Size(config.OneOf({"n_positions", "max_position_embeddings"}), 1024);
  g.inner = config.Size("n_inner", 4 * s.hidden);
  g.epsilon = config.Positive("layer_norm_epsilon", 1e-5);
  g.activation = ReadActivation(config, "activation_function", activation);
  g.scaled = config.Flag("scale_attn_weights", true);
  g.tied = config.Flag("tie_word_embeddings", true);
  config.RequireFlag("add_cross_attention", false, false);
  return g;
}

LanguageModel ToModel(Gpt g) {
  LanguageModel model;
  model.facts.vocab_size = g.sizes.vocab_size;
  model.facts.max_positions = g.sizes.max_positions;
  model.facts.layers = g.sizes.layers;
  model.build = [g](ModelBuilder& builder) { return BuildGpt(g, builder); };
  return model;
}

}  // namespace

LanguageModel ReadGpt2(ConfigReader& config) {
  Gpt g = ReadGpt(config, "gelu_new");
  g.transposed = true;
  g.scaled_by_depth = config.Flag("scale_attn_by_inverse_layer_idx", false);
  return ToModel(std::move(g));
}

LanguageModel ReadBigCode(ConfigReader& config) {
  Gpt g = ReadGpt(config, "gelu_pytorch_tanh");
  const bool multi_query = config.Flag("multi_query", true);
  if (multi_query) {
    g.sizes.kv_heads = 1;
  } else {
    g.interleaved = true;
  }
  // transformers 5 writes what multi_query says.
  if (config.Size("num_key_value_heads", g.sizes.kv_heads) != g.sizes.kv_heads) {
    config.Refuse("num_key_value_heads",
                  absl::StrCat(g.sizes.kv_heads, ", as \"multi_query\" says"));
  }
  config.Ignore({"inference_runner", "validate_runner_input", "pre_allocate_kv_cache",
                 "max_batch_size", "pad_key_length"});
  return ToModel(std::move(g));
}

}  // namespace espalier
