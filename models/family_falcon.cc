// Falcon: a fused q, k, v projection in three layouts, attention and MLP in parallel or in
// sequence, rotary embeddings or (RW) ALiBi.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "models/family.h"

namespace espalier {
namespace {

struct FalconConfig {
  CommonSizes sizes;
  int64_t ffn = 0;
  double epsilon = 1e-5;
  std::string activation;
  bool grouped = false;  // "new_decoder_architecture": q heads, k and v of each group together
  bool multi_query = true;
  bool parallel = true, bias = false, alibi = false, tied = true;
  int norms = 1;  // before a parallel layer
  Rope rope;
};

// Rows of q (0), k (1) and v (2) in the fused projection.
FusedRows FalconRows(const FalconConfig& f, const std::string& tensor, int which) {
  const CommonSizes& s = f.sizes;
  const int64_t d = s.head_dim;
  FusedRows rows{tensor, (s.heads + 2 * s.kv_heads) * d, {}};
  // A group: `queries` heads of q, one of k, one of v.
  const int64_t queries = s.heads / s.kv_heads, group = (queries + 2) * d;
  for (int64_t g = 0; g < s.kv_heads; ++g) {
    const int64_t begin = g * group + (which == 0 ? 0 : queries + which - 1) * d;
    rows.rows.emplace_back(begin, begin + (which == 0 ? queries * d : d));
  }
  return rows;
}

ValueId Attention(const FalconConfig& f, ModelBuilder& b, int i, const std::string& p, ValueId x) {
  const CommonSizes& s = f.sizes;
  const auto project = [&](const char* name, int which, int64_t heads) {
    return b.Linear(p + name, x, heads * s.head_dim, s.hidden,
                    {.bias = f.bias, .fused = FalconRows(f, p + "query_key_value", which)});
  };
  ValueId q = project("q", 0, s.heads), k = project("k", 1, s.kv_heads);
  const ValueId v = project("v", 2, s.kv_heads);
  AttentionOptions options{.heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim};
  if (f.alibi) {
    options.alibi_slopes = AlibiSlopes(s.heads);
    options.alibi_bf16 = true;
  } else {
    q = b.Rotary(q, f.rope);
    k = b.Rotary(k, f.rope);
  }
  const ValueId y = b.Attention(i, q, k, v, options);
  return b.Linear(p + "dense", y, s.hidden, s.hidden, {.bias = f.bias, .residual = true});
}

ValueId FalconLayer(const FalconConfig& f, ModelBuilder& b, int i, ValueId x) {
  const std::string p = absl::StrCat("transformer.h.", i, ".");
  const int64_t hidden = f.sizes.hidden;
  const auto norm = [&](const char* name, ValueId v) {
    return b.LayerNorm(p + name, v, hidden, f.epsilon);
  };
  const auto mlp = [&](ValueId v) {
    v = b.Linear(p + "mlp.dense_h_to_4h", v, f.ffn, hidden, {.bias = f.bias});
    v = b.Activation(f.activation, v);
    return b.Linear(p + "mlp.dense_4h_to_h", v, hidden, f.ffn, {.bias = f.bias, .residual = true});
  };
  const ValueId normed = norm(f.norms == 2 ? "ln_attn" : "input_layernorm", x);
  const ValueId attended = Attention(f, b, i, p + "self_attention.", normed);
  if (f.parallel) {
    const ValueId h = mlp(f.norms == 2 ? norm("ln_mlp", x) : normed);
    return b.Add(x, b.Add(h, attended));
  }
  x = b.Add(x, attended);
  return b.Add(x, mlp(norm("post_attention_layernorm", x)));
}

ValueId BuildFalcon(const FalconConfig& f, ModelBuilder& b) {
  const CommonSizes& s = f.sizes;
  const std::string embedding = "transformer.word_embeddings";
  ValueId x = b.TokenEmbedding(embedding, s.vocab_size, s.hidden);
  for (int64_t i = 0; i < s.layers; ++i) x = FalconLayer(f, b, static_cast<int>(i), x);
  x = b.LayerNorm("transformer.ln_f", x, s.hidden, f.epsilon);
  b.Ignore({".rotary_emb.inv_freq", ".maybe_rotary.inv_freq"});
  return b.Logits(x, s.hidden, f.tied ? embedding : "");
}

}  // namespace

LanguageModel ReadFalcon(ConfigReader& config) {
  FalconConfig f;
  CommonSizes& s = f.sizes;
  s.vocab_size = config.Size("vocab_size");
  s.hidden = config.Size(config.OneOf({"hidden_size", "n_embed"}));
  s.layers = config.Int(config.OneOf({"num_hidden_layers", "n_layer"}), 32, 1, 4096);
  s.heads = config.Size(config.OneOf({"num_attention_heads", "n_head"}));
  CheckCounts(config, s.layers, s.heads);
  s.head_dim = DivideHeads(config, s.hidden, s.heads);
  s.max_positions = config.Int("max_position_embeddings", 2048, 1, int64_t{1} << 30);
  f.ffn = config.Size("ffn_hidden_size", 4 * s.hidden);
  f.epsilon = config.Positive("layer_norm_epsilon", 1e-5);
  f.activation = ReadActivation(config, "activation", "gelu");
  f.grouped = config.Flag("new_decoder_architecture", false);
  f.multi_query = config.Flag("multi_query", true);
  f.parallel = config.Flag("parallel_attn", true);
  f.bias = config.Flag("bias", false);
  f.alibi = config.Flag("alibi", false);
  f.tied = config.Flag("tie_word_embeddings", true);
  // The first files' code takes the residual after the norm.
  config.RequireFlag("apply_residual_connection_post_layernorm", false, false);
  const std::string field = config.OneOf({"num_kv_heads", "n_head_kv"});
  if (f.grouped) {
    s.kv_heads = config.Size(field, s.heads);
    if (s.heads % s.kv_heads != 0) {
      config.Refuse(field, absl::StrCat("a divisor of the ", s.heads, " attention heads"));
    }
    config.RequireFlag("parallel_attn", true, true);
  } else {
    s.kv_heads = f.multi_query ? 1 : s.heads;
    // With one head of keys the field is not used.
    if (!f.multi_query && config.Size(field, s.heads) != s.heads) {
      config.Refuse(field, absl::StrCat(s.heads, ", the number of attention heads"));
    }
  }
  f.norms = static_cast<int>(
      config.Int("num_ln_in_parallel_attn", f.grouped ? 2 : 1, 1, f.grouped ? 2 : 1));
  if (f.alibi) {
    config.Ignore({"rope_parameters", "rope_scaling", "rope_theta"});
  } else {
    f.rope = ReadRope(config, s.head_dim, {.max_positions = s.max_positions});
  }
  config.Ignore({"ff_factor"});  // ffn_hidden_size holds the product
  LanguageModel model;
  model.facts.vocab_size = s.vocab_size;
  model.facts.max_positions = std::max(s.max_positions, f.rope.max_positions);
  if (f.rope.by_length()) model.facts.short_positions = f.rope.short_positions;
  model.facts.dynamic_rope = f.rope.dynamic_factor > 0;
  model.facts.layers = s.layers;
  model.build = [f](ModelBuilder& builder) { return BuildFalcon(f, builder); };
  return model;
}

// The original model's name of the field.
LanguageModel ReadFalconRw(ConfigReader& config) { return ReadFalcon(config); }

}  // namespace espalier
