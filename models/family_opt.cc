// OPT: learned positions (the files have two extra rows), pre-norm or post-norm; the 350M model's
// embeddings are narrower than its layers.
#include "absl/strings/str_cat.h"
#include "models/family.h"

namespace espalier {
namespace {

struct Opt {
  CommonSizes sizes;
  int64_t embedding = 0, ffn = 0;
  std::string activation;
  bool norm_before = true, final_norm = true, affine = true, bias = true, tied = true;
};

ValueId OptLayer(const Opt& o, ModelBuilder& b, int i, ValueId x) {
  const std::string p = absl::StrCat("model.decoder.layers.", i, ".");
  const CommonSizes& s = o.sizes;
  const auto norm = [&](const char* name, ValueId v) {
    return b.LayerNorm(p + name, v, s.hidden, 1e-5, o.affine, o.affine);
  };
  const auto linear = [&](const char* name, ValueId v, int64_t out, int64_t in,
                          bool residual = false) {
    return b.Linear(p + name, v, out, in, {.bias = o.bias, .residual = residual});
  };
  ValueId h = o.norm_before ? norm("self_attn_layer_norm", x) : x;
  const ValueId q = linear("self_attn.q_proj", h, s.hidden, s.hidden);
  const ValueId k = linear("self_attn.k_proj", h, s.hidden, s.hidden);
  const ValueId v = linear("self_attn.v_proj", h, s.hidden, s.hidden);
  h = b.Attention(i, q, k, v, {.heads = s.heads, .kv_heads = s.heads, .head_dim = s.head_dim});
  x = b.Add(x, linear("self_attn.out_proj", h, s.hidden, s.hidden, true));
  if (!o.norm_before) x = norm("self_attn_layer_norm", x);
  h = o.norm_before ? norm("final_layer_norm", x) : x;
  h = b.Activation(o.activation, linear("fc1", h, o.ffn, s.hidden));
  x = b.Add(x, linear("fc2", h, s.hidden, o.ffn, true));
  return o.norm_before ? x : norm("final_layer_norm", x);
}

ValueId BuildOpt(const Opt& o, ModelBuilder& b) {
  const CommonSizes& s = o.sizes;
  const std::string p = "model.decoder.";
  const bool projected = o.embedding != s.hidden;
  ValueId x = b.TokenEmbedding(p + "embed_tokens", s.vocab_size, o.embedding);
  if (projected) x = b.Linear(p + "project_in", x, s.hidden, o.embedding);
  x = b.Add(x, b.PositionEmbedding(p + "embed_positions", s.max_positions, s.hidden,
                                   /*skipped=*/2));
  for (int64_t i = 0; i < s.layers; ++i) x = OptLayer(o, b, static_cast<int>(i), x);
  if (o.norm_before && o.final_norm) {
    x = b.LayerNorm(p + "final_layer_norm", x, s.hidden, 1e-5, o.affine, o.affine);
  }
  if (projected) x = b.Linear(p + "project_out", x, o.embedding, s.hidden);
  return b.Logits(x, o.embedding, o.tied ? p + "embed_tokens" : "");
}

}  // namespace

LanguageModel ReadOpt(ConfigReader& config) {
  Opt o;
  config.RequireAbsent("num_key_value_heads", "OPT's heads are not grouped");
  config.RequireAbsent("head_dim", "OPT's heads share the hidden size");
  o.sizes = ReadSizes(config, {.max_positions = 2048});
  o.embedding = config.Size("word_embed_proj_dim", o.sizes.hidden);
  o.ffn = config.Size("ffn_dim");
  o.activation = ReadActivation(config, "activation_function", "relu");
  o.norm_before = config.Flag("do_layer_norm_before", true);
  o.final_norm = !config.Flag("_remove_final_layer_norm", false);
  o.affine = config.Flag("layer_norm_elementwise_affine", true);
  o.bias = config.Flag("enable_bias", true);
  o.tied = config.Flag("tie_word_embeddings", true);
  LanguageModel model;
  model.facts.vocab_size = o.sizes.vocab_size;
  model.facts.max_positions = o.sizes.max_positions;
  model.facts.layers = o.sizes.layers;
  model.build = [o](ModelBuilder& builder) { return BuildOpt(o, builder); };
  return model;
}

}  // namespace espalier
