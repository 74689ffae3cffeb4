// Mistral: LLaMA with a sliding window in all layers.
#include "ops/models/decoder.h"

namespace espalier {

LanguageModel ReadMistral(ConfigReader& config) {
  Decoder decoder = ReadDecoder(config, {.max_positions = 131072, .kv_heads = 8});
  const int64_t window = ReadWindow(config, 4096);
  config.OnlyAbsent("layer_types", "all layers of Mistral are alike");
  for (DecoderLayer& layer : decoder.layers) layer.window = window;
  return ToModel(std::move(decoder));
}

}  // namespace espalier
