#include "serving/models/check_same_vocabulary.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Includes tokens that only the tokenizer file has.
int Tokens(const ModelDescription& model) {
  const int has = model.tokenizer->vocabulary();
  return model.omitted_added_tokens.empty()
             ? has
             : std::max(has, model.omitted_added_tokens.rbegin()->first + 1);
}

std::string Bytes(const ModelDescription& model, int id) {
  const auto omitted_added_tokens = model.omitted_added_tokens.find(id);
  return omitted_added_tokens == model.omitted_added_tokens.end() ? model.tokenizer->TokenBytes(id)
                                                                  : omitted_added_tokens->second;
}

}  // namespace

absl::Status CheckSameVocabulary(const std::string& llm, const ModelDescription& large,
                                 const std::string& ssm, const ModelDescription& small) {
  const int wanted = Tokens(large), has = Tokens(small);
  if (wanted != has) {
    return absl::InvalidArgumentError(absl::StrCat("'", ssm, "' has a vocabulary of ", has,
                                                   " tokens, the LLM '", llm, "' of ", wanted,
                                                   "; an SSM must have the LLM's"));
  }
  for (int id = 0; id < wanted; ++id) {
    const std::string theirs = Bytes(large, id), own = Bytes(small, id);
    if (theirs == own) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token ", id, " is \"", absl::CHexEscape(own.substr(0, 40)), "\" in '", ssm,
                     "', \"", absl::CHexEscape(theirs.substr(0, 40)), "\" in the LLM '", llm,
                     "'; an SSM must have the LLM's vocabulary"));
  }
  return absl::OkStatus();
}

}  // namespace espalier
