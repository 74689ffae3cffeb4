// Whether two models speak of the same tokens: what one drafts, the other must be able to judge.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "serving/models/model_description.h"

namespace espalier {

// Compares what every token stands for. InvalidArgument names both models and the first token that
// differs. Sizes alone say little: models of one size may have tokenizers of their own, and drafts
// would be noise that is never accepted; and those of one tokenizer may differ in size
// (vocabulary_runner.h).
absl::Status CheckSameVocabulary(const std::string& llm, const ModelDescription& large,
                            const std::string& ssm, const ModelDescription& small);

}  // namespace espalier
