#include "serving/models/same_vocabulary.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace espalier {

absl::Status SameVocabulary(const std::string& llm, const ModelDescription& large,
                            const std::string& ssm, const ModelDescription& small) {
  const int wanted = large.tokenizer->vocabulary(), has = small.tokenizer->vocabulary();
  if (wanted != has) {
    return absl::InvalidArgumentError(absl::StrCat("'", ssm, "' has a vocabulary of ", has,
                                                   " tokens, the LLM '", llm, "' of ", wanted,
                                                   "; an SSM must have the LLM's"));
  }
  for (int id = 0; id < wanted; ++id) {
    const std::string theirs = large.tokenizer->TokenBytes(id),
                      own = small.tokenizer->TokenBytes(id);
    if (theirs == own) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token ", id, " is \"", absl::CHexEscape(own.substr(0, 40)), "\" in '", ssm,
                     "', \"", absl::CHexEscape(theirs.substr(0, 40)), "\" in the LLM '", llm,
                     "'; an SSM must have the LLM's vocabulary"));
  }
  return absl::OkStatus();
}

}  // namespace espalier
