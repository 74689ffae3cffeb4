// Gemma 1, 2 and 3 (text). Norms multiply by 1 + weight; embeddings are scaled.
#include <algorithm>
#include <cmath>

#include "models/decoder.h"

namespace espalier {
namespace {

constexpr int64_t kHeadDim = 256;  // of all Gemmas, whatever hidden_size is
constexpr char kGemma3Text[] = "gemma3_text";

Decoder ReadGemmaDecoder(ConfigReader& config, const DecoderDefaults& defaults) {
  Decoder decoder = ReadDecoder(config, defaults);
  decoder.norm_add = 1;
  // Older files with "gelu" in "hidden_act" mean its tanh approximation: the weights were trained
  // with it, and vLLM and older transformers use it. Newer transformers (4.57) take "hidden_act"
  // literally.
  config.RequireText("hidden_act", {"gelu", "gelu_pytorch_tanh"});
  decoder.activation = ReadActivation(config, "hidden_activation", "gelu_pytorch_tanh");
  decoder.embedding_scale = std::sqrt(static_cast<double>(decoder.sizes.hidden));
  decoder.qkv_bias = decoder.output_bias = config.Flag("attention_bias", false);
  return decoder;
}

// Shared by Gemma 2 and 3.
void ReadNewer(ConfigReader& config, Decoder* decoder) {
  decoder->post_norms = true;
  decoder->attention_scale = 1 / std::sqrt(config.Positive("query_pre_attn_scalar", 256));
  config.RequireFlag("use_bidirectional_attention", false, false);
}

double ReadSoftcap(ConfigReader& config, const std::string& field, double otherwise) {
  return config.Positive(field, config.HasOrIsNull(field) ? 0 : otherwise);
}

// Files of multimodal models omit fields that equal the defaults of transformers' Gemma3TextConfig,
// and so do files made of their "text_config".
void DefaultsOfGemma3Text(ConfigReader& config) {
  for (const auto& [field, value] : {std::pair("vocab_size", 262208),
                                     {"hidden_size", 2304},
                                     {"intermediate_size", 9216},
                                     {"num_hidden_layers", 26},
                                     {"num_attention_heads", 8}}) {
    config.Default(field, value);
  }
}

// Every `period`-th layer has full attention.
std::vector<bool> Sliding(size_t layers, int64_t period) {
  std::vector<bool> sliding(layers);
  for (size_t i = 0; i < layers; ++i) {
    sliding[i] = (static_cast<int64_t>(i) + 1) % period != 0;
  }
  return sliding;
}

}  // namespace

LanguageModel ReadGemma(ConfigReader& config) {
  return ToModel(
      ReadGemmaDecoder(config, {.max_positions = 8192, .tied = true, .head_dim = kHeadDim}));
}

LanguageModel ReadGemma2(ConfigReader& config) {
  Decoder decoder = ReadGemmaDecoder(
      config, {.max_positions = 8192, .tied = true, .kv_heads = 4, .head_dim = kHeadDim});
  ReadNewer(config, &decoder);
  decoder.attention_softcap = ReadSoftcap(config, "attn_logit_softcapping", 50);
  decoder.logit_softcap = ReadSoftcap(config, "final_logit_softcapping", 30);
  const int64_t window = ReadWindow(config, 4096);
  if (window > 0) config.Int("sliding_window_size", window, window, window);  // the same again
  ReadWindows(config, window, Sliding(decoder.layers.size(), 2), &decoder);
  return ToModel(std::move(decoder));
}

LanguageModel ReadGemma3(ConfigReader& config) {
  if (config.Text("model_type", "") == kGemma3Text) DefaultsOfGemma3Text(config);
  Decoder decoder = ReadGemmaDecoder(config, {.max_positions = 131072,
                                              .tied = true,
                                              .theta = 1e6,
                                              .kv_heads = 4,
                                              .head_dim = kHeadDim,
                                              .rope_by_layers = true});
  ReadNewer(config, &decoder);
  decoder.head_norms = true;
  config.RequireAbsent("attn_logit_softcapping", "Gemma 3 has none");
  decoder.logit_softcap = ReadSoftcap(config, "final_logit_softcapping", 0);
  const std::string period = config.OneOf({"sliding_window_pattern", "_sliding_window_pattern"});
  ReadWindows(config, ReadWindow(config, 4096),
              Sliding(decoder.layers.size(), config.Size(period, 6)), &decoder);
  // Sliding-window layers have a base of their own, which "rope_scaling" does not apply to.
  decoder.ropes.push_back(ReadRope(config, decoder.sizes.head_dim,
                                   {.theta = 10000,
                                    .max_positions = decoder.sizes.max_positions,
                                    .theta_field = "rope_local_base_freq",
                                    .layers = "sliding_attention"}));
  for (DecoderLayer& layer : decoder.layers) layer.rope = layer.window > 0 ? 1 : 0;
  // max_position_embeddings is the scaled length.
  for (Rope& rope : decoder.ropes) rope.max_positions = decoder.sizes.max_positions;
  return ToModel(std::move(decoder));
}

// The multimodal ones (4B and larger), as text models.
LanguageModel ReadGemma3Images(ConfigReader& config) {
  ConfigReader text = ReadTextConfig(config, kGemma3Text);
  DefaultsOfGemma3Text(text);
  LanguageModel model = ReadGemma3(text);
  model.facts.text_part = true;
  return model;
}

}  // namespace espalier
