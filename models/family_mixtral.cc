// Mixtral: Mistral with a mixture of experts in each layer.
#include "models/decoder.h"

namespace espalier {

LanguageModel ReadMixtral(ConfigReader& config) {
  Decoder decoder = ReadDecoder(
      config, {.max_positions = 131072, .theta = 1e6, .kv_heads = 8, .norm_epsilon = 1e-5});
  const int64_t window = ReadWindow(config, 0);
  decoder.experts = {.normalized = true,
                     .router = "block_sparse_moe.gate",
                     .experts = "block_sparse_moe.experts",
                     .gate = "w1",
                     .up = "w3",
                     .down = "w2"};
  decoder.experts.count = config.Int("num_local_experts", 8, 1, 4096);
  decoder.experts.chosen = config.Int("num_experts_per_tok", 2, 1, decoder.experts.count);
  decoder.experts.intermediate = decoder.intermediate;
  CheckCounts(config, decoder.sizes.layers, decoder.experts.count);
  if (decoder.experts.chosen > decoder.experts.count) {
    config.Refuse("num_experts_per_tok", "at most as many as there are experts");
  }
  for (DecoderLayer& layer : decoder.layers) {
    layer.window = window;
    layer.experts = true;
  }
  return ToModel(std::move(decoder));
}

}  // namespace espalier
