// LLaMA 1 to 3. llama.h builds models from sizes.
#include "models/decoder.h"

namespace espalier {

LanguageModel ReadLlama(ConfigReader& config) {
  Decoder decoder = ReadDecoder(config, {.max_positions = 2048});
  decoder.qkv_bias = decoder.output_bias = config.Flag("attention_bias", false);
  decoder.mlp_bias = config.Flag("mlp_bias", false);
  return ToModel(std::move(decoder));
}

}  // namespace espalier
