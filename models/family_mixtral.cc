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
  ReadExpertCounts(config, 8, 2, &decoder);
  decoder.experts.intermediate = decoder.intermediate;
  for (DecoderLayer& layer : decoder.layers) {
    layer.window = window;
    layer.experts = true;
  }
  return ToModel(std::move(decoder));
}

}  // namespace espalier
