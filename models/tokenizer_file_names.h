// The files of a tokenizer in a model's folder.
#pragma once

#include "absl/strings/string_view.h"

namespace espalier {

// Whether `name`, relative to the folder, is a file that belongs to the tokenizer as transformers
// writes it: vocabulary, special tokens, chat templates, and generation_config.json, whose
// eos_token_id ends answers.
bool IsTokenizerFile(absl::string_view name);

}  // namespace espalier
