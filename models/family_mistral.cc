// Mistral: LLaMA with a sliding window in all layers.
#include "models/decoder.h"

namespace espalier {

LanguageModel ReadMistral(ConfigReader& config) {
  Decoder decoder = ReadDecoder(config, {.max_positions = 131072, .kv_heads = 8});
  const int64_t window = ReadWindow(config, 4096);
  config.RequireAbsent("layer_types", "all layers of Mistral are alike");
  for (DecoderLayer& layer : decoder.layers) layer.window = window;
  return ToModel(std::move(decoder));
}

// Mistral Small 3.1 and later, which are multimodal, as text models.
LanguageModel ReadMistral3(ConfigReader& config) {
  ConfigReader text = ReadTextConfig(config, "mistral");
  LanguageModel model = ReadMistral(text);
  model.facts.text_part = true;
  return model;
}

}  // namespace espalier
