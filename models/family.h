// For the file of a model family. It defines `LanguageModel Read<Name>(ConfigReader&)`, which fills
// in vocab_size, max_positions and build, and reports what it does not support through the reader.
// The result is ignored if the reader has an error.
#pragma once

#include "models/config_reader.h"
#include "models/model.h"
#include "models/model_builder.h"
#include "models/rope.h"

namespace espalier {

// Sizes that most configurations have under these names. REQUIRES: kv_heads divides heads
// (checked).
struct CommonSizes {
  int64_t vocab_size = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t max_positions = 0;
};
// Defaults for missing fields.
struct SizeDefaults {
  int64_t max_positions = 0;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden / heads
};
// Reads sizes under LLaMA's names.
CommonSizes ReadSizes(ConfigReader& config, const SizeDefaults& defaults);
// Limits layers and heads, or experts, so that the graph stays small whatever the file says.
void CheckCounts(ConfigReader& config, int64_t layers, int64_t heads_or_experts);
// Returns hidden / heads, or fails if it is not an integer.
int64_t DivideHeads(ConfigReader& config, int64_t hidden, int64_t heads);

// Returns "text_config" of a multimodal model whose text part has this "model_type"; fails for
// others.
ConfigReader ReadTextConfig(ConfigReader& config, const std::string& type);

}  // namespace espalier
