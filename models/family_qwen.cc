// Qwen 2 and 3, dense and as a mixture of experts.
#include <algorithm>

#include "models/decoder.h"

namespace espalier {
namespace {

// The sliding window applies only with use_sliding_window, in layers from max_window_layers on.
void ReadQwenWindows(ConfigReader& config, Decoder* decoder) {
  const int64_t window = ReadWindow(config, 4096);
  const bool used = config.Flag("use_sliding_window", false);
  const int64_t first = config.Int("max_window_layers", 28, 0, 4096);
  std::vector<bool> sliding(decoder->layers.size());
  for (size_t i = 0; i < sliding.size(); ++i) sliding[i] = used && static_cast<int64_t>(i) >= first;
  ReadWindows(config, used ? window : 0, sliding, decoder);
}

}  // namespace

LanguageModel ReadQwen2(ConfigReader& config) {
  Decoder decoder = ReadDecoder(config, {.max_positions = 32768});
  decoder.qkv_bias = true;
  ReadQwenWindows(config, &decoder);
  return ToModel(std::move(decoder));
}

LanguageModel ReadQwen3(ConfigReader& config) {
  Decoder decoder = ReadDecoder(config, {.max_positions = 32768, .head_dim = 128});
  decoder.qkv_bias = decoder.output_bias = config.Flag("attention_bias", false);
  decoder.head_norms = true;
  ReadQwenWindows(config, &decoder);
  return ToModel(std::move(decoder));
}

LanguageModel ReadQwen3Moe(ConfigReader& config) {
  // Unlike the dense class, this one has no default head_dim: hidden / heads.
  Decoder decoder = ReadDecoder(config, {.max_positions = 32768});
  decoder.qkv_bias = decoder.output_bias = config.Flag("attention_bias", false);
  decoder.head_norms = true;
  const bool sliding = config.Flag("use_sliding_window", false);
  const int64_t window = ReadWindow(config, 4096);
  config.Ignore({"max_window_layers"});  // for the dense class
  DecoderExperts& experts = decoder.experts;
  experts = {.router = "mlp.gate",
             .experts = "mlp.experts",
             .gate = "gate_proj",
             .up = "up_proj",
             .down = "down_proj"};
  ReadExpertCounts(config, 128, 8, &decoder);
  experts.intermediate = config.Size("moe_intermediate_size", 768);
  experts.normalized = config.Flag("norm_topk_prob", false);
  const int64_t step = config.Size("decoder_sparse_step", 1);
  const std::vector<int64_t> dense = config.Ints("mlp_only_layers");
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    const int64_t layer = static_cast<int64_t>(i);
    decoder.layers[i].window = sliding ? window : 0;
    decoder.layers[i].experts =
        std::count(dense.begin(), dense.end(), layer) == 0 && (layer + 1) % step == 0;
  }
  return ToModel(std::move(decoder));
}

}  // namespace espalier
