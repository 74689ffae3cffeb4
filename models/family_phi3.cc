// Phi-3: LLaMA with fused projections; long contexts by longrope.
#include "models/decoder.h"

namespace espalier {

LanguageModel ReadPhi3(ConfigReader& config) {
  Decoder decoder = ReadDecoder(
      config, {.max_positions = 4096, .norm_epsilon = 1e-5, .original_positions = 4096});
  decoder.fused = true;
  const int64_t window = ReadWindow(config, 0);
  for (const char* one : {"full_attn_mod", "interpolate_factor"}) config.Int(one, 1, 1, 1);
  for (DecoderLayer& layer : decoder.layers) layer.window = window;
  return ToModel(std::move(decoder));
}

}  // namespace espalier
