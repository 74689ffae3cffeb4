// What a family's file needs: it defines `LanguageModel Read<Name>(ConfigReader&)`, which fills in
// vocab_size, max_positions and build, and reports what it cannot honour through the reader. The
// result is not used if the reader has an error.
#pragma once

#include "models/config_reader.h"
#include "models/model.h"
#include "models/model_builder.h"
#include "models/rope.h"

namespace espalier {

// Sizes that most configurations have under these names, checked: heads divides into kv_heads.
struct CommonSizes {
  int64_t vocab_size = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t max_positions = 0;
};
// Where the field is missing.
struct SizeDefaults {
  int64_t max_positions = 0;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden / heads
};
// Names as in LLaMA's files.
CommonSizes ReadSizes(ConfigReader& config, const SizeDefaults& defaults);
// What grows with layers and heads, or experts, stays small whatever the file says.
void CheckCounts(ConfigReader& config, int64_t layers, int64_t heads_or_experts);
// head_dim of hidden / heads, or an error.
int64_t DivideHeads(ConfigReader& config, int64_t hidden, int64_t heads);

// "text_config" of a model that reads images, too, whose text part is of this "model_type"; an
// error for others.
ConfigReader ReadTextConfig(ConfigReader& config, const std::string& type);

}  // namespace espalier
