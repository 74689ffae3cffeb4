#include "models/tokenizer_file_names.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"

namespace espalier {
namespace {

constexpr absl::string_view kTokenizerFiles[] = {"added_tokens.json",
                                                 "chat_template.jinja",
                                                 "chat_template.json",
                                                 "generation_config.json",
                                                 "merges.txt",
                                                 "sentencepiece.bpe.model",
                                                 "special_tokens_map.json",
                                                 "spiece.model",
                                                 "tokenizer.json",
                                                 "tokenizer.model",
                                                 "tokenizer_config.json",
                                                 "vocab.json",
                                                 "vocab.txt"};

}  // namespace

bool IsTokenizerFile(absl::string_view name) {
  return std::find(std::begin(kTokenizerFiles), std::end(kTokenizerFiles), name) !=
             std::end(kTokenizerFiles) ||
         (absl::StartsWith(name, "additional_chat_templates/") && absl::EndsWith(name, ".jinja"));
}

}  // namespace espalier
