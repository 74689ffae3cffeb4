// Checks that an SSM has the same vocabulary as the LLM that verifies its drafts.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "serving/models/model_description.h"

namespace espalier {

// Compares the text of every token. Returns InvalidArgument naming both models and the first
// different token. Sizes alone prove nothing: models of one size may have different tokenizers, and
// then no draft would ever be accepted; models with one tokenizer may differ in size
// (vocabulary_resizing_runner.h).
absl::Status CheckSameVocabulary(const std::string& llm, const ModelDescription& large,
                                 const std::string& ssm, const ModelDescription& small);

}  // namespace espalier
