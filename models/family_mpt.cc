// MPT: ALiBi, norms and layers without biases.
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "models/family.h"

namespace espalier {
namespace {

struct MptConfig {
  CommonSizes sizes;
  int64_t ffn = 0;
  double epsilon = 1e-5, clip = 0, scale = 0, bias_max = 8;
  bool head_norms = false;  // "qk_ln": one norm over all heads of q, and one over those of k
  bool tied = true;
};

// Slopes of the next power of two of heads: every second one first, then the others.
std::vector<float> Slopes(int64_t heads, double bias_max) {
  const int64_t all = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(heads)));
  std::vector<float> slopes;
  const auto add = [&](int64_t first, int64_t step) {
    for (int64_t i = first; i <= all && static_cast<int64_t>(slopes.size()) < heads; i += step) {
      slopes.push_back(static_cast<float>(
          std::exp2(-bias_max * static_cast<double>(i) / static_cast<double>(all))));
    }
  };
  if (all == heads) {
    add(1, 1);
  } else {
    add(2, 2);
    add(1, 2);
  }
  return slopes;
}

ValueId MptLayer(const MptConfig& m, ModelBuilder& b, int i, ValueId x) {
  const CommonSizes& s = m.sizes;
  const std::string p = absl::StrCat("transformer.blocks.", i, ".");
  const auto norm = [&](const char* name, ValueId v) {
    return b.LayerNorm(p + name, v, s.hidden, m.epsilon, true, false);
  };
  ValueId h = norm("norm_1", x);
  const auto project = [&](const char* name, int64_t which) {
    ValueId v = b.Linear(
        p + name, h, s.hidden, s.hidden,
        {.fused = {p + "attn.Wqkv", 3 * s.hidden, {{which * s.hidden, (which + 1) * s.hidden}}}});
    if (m.clip > 0) v = b.Op("clip", {v}, {{"min", -m.clip}, {"max", m.clip}});
    return v;
  };
  ValueId q = project("attn.q", 0), k = project("attn.k", 1);
  const ValueId v = project("attn.v", 2);
  if (m.head_norms) {
    q = norm("attn.q_ln", q);
    k = norm("attn.k_ln", k);
  }
  h = b.Attention(i, q, k, v,
                  {.heads = s.heads,
                   .kv_heads = s.heads,
                   .head_dim = s.head_dim,
                   .scale = m.scale,
                   .alibi_slopes = Slopes(s.heads, m.bias_max)});
  x = b.Add(x, b.Linear(p + "attn.out_proj", h, s.hidden, s.hidden, {.residual = true}));
  h = b.Linear(p + "ffn.up_proj", norm("norm_2", x), m.ffn, s.hidden);
  return b.Add(x, b.Linear(p + "ffn.down_proj", b.Activation("gelu", h), s.hidden, m.ffn,
                           {.residual = true}));
}

ValueId BuildMpt(const MptConfig& m, ModelBuilder& b) {
  const CommonSizes& s = m.sizes;
  const std::string embedding = "transformer.wte";
  ValueId x = b.TokenEmbedding(embedding, s.vocab_size, s.hidden);
  for (int64_t i = 0; i < s.layers; ++i) x = MptLayer(m, b, static_cast<int>(i), x);
  x = b.LayerNorm("transformer.norm_f", x, s.hidden, m.epsilon, true, false);
  return b.Logits(x, s.hidden, m.tied ? embedding : "");
}

}  // namespace

LanguageModel ReadMpt(ConfigReader& config) {
  MptConfig m;
  CommonSizes& s = m.sizes;
  s.vocab_size = config.Size("vocab_size");
  s.hidden = config.Size(config.OneOf({"d_model", "hidden_size"}));
  s.layers = config.Int(config.OneOf({"n_layers", "num_hidden_layers"}), 24, 1, 4096);
  s.heads = config.Size(config.OneOf({"n_heads", "num_attention_heads"}));
  CheckCounts(config, s.layers, s.heads);
  s.head_dim = DivideHeads(config, s.hidden, s.heads);
  s.max_positions = config.Int("max_seq_len", 2048, 1, int64_t{1} << 30);
  m.ffn = config.Size("expansion_ratio", 4) * s.hidden;
  m.epsilon = config.Positive("layer_norm_epsilon", 1e-5);
  m.tied = config.Flag("tie_word_embeddings", true);
  config.RequireFlag("no_bias", true, true);
  config.RequireAbsent("logit_scale", "logits are not scaled");
  config.RequireText("norm_type", {"low_precision_layernorm", "layernorm"});
  config.RequireAbsent("final_logit_softcapping", "logits are not capped");
  config.RequireAbsent("block_overrides", "all layers are alike");
  ConfigReader ffn = config.Object("ffn_config");
  ffn.RequireText("ffn_type", {"mptmlp"});
  ConfigReader activation = ffn.Object("ffn_act_fn");
  activation.RequireText("name", {"gelu"});
  activation.RequireText("approximate", {"none"});
  ConfigReader attention = config.Object("attn_config");
  attention.RequireText("attn_type", {"multihead_attention"});
  attention.RequireFlag("alibi", true, true);
  attention.RequireFlag("prefix_lm", false, false);
  attention.RequireFlag("attn_uses_sequence_id", false, false);
  attention.RequireAbsent("attn_logit_softcapping", "attention is not capped");
  if (attention.Int("sliding_window_size", -1, -1, int64_t{1} << 30) != -1) {
    attention.Refuse("sliding_window_size", "-1: all keys", /*unsupported=*/true);
  }
  m.clip = attention.Number("clip_qkv", 0);
  if (m.clip < 0) attention.Refuse("clip_qkv", "a number above 0, or 0 or null: nothing is cut");
  m.scale = attention.Positive("softmax_scale", 0);
  m.bias_max = attention.Positive("alibi_bias_max", 8);
  m.head_norms = attention.Flag("qk_ln", false);
  // Embeddings' gradients, where parameters are made, and positions that ALiBi replaces.
  config.Ignore({"embedding_fraction", "learned_pos_emb"});
  ffn.Ignore({"fc_type"});
  LanguageModel model;
  model.facts.vocab_size = s.vocab_size;
  model.facts.max_positions = s.max_positions;
  model.facts.layers = s.layers;
  model.build = [m](ModelBuilder& builder) { return BuildMpt(m, builder); };
  return model;
}

// Files from before Hugging Face supported the family.
LanguageModel ReadMptOriginal(ConfigReader& config) { return ReadMpt(config); }

}  // namespace espalier
