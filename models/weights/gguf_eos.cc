#include "models/weights/gguf_eos.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr absl::string_view kEnd = "<|end|>", kReturn = "<|return|>", kCall = "<|call|>";

// The spellings of llama.cpp's llama-vocab.cpp for the supported models, and a few more: plain text
// has no such tokens. After the end of an answer FIM models go on to padding, repository and file
// tokens.
constexpr absl::string_view kSpellings[] = {kEnd,
                                            kReturn,
                                            kCall,
                                            "<|eot_id|>",
                                            "<|eom_id|>",
                                            "<|im_end|>",
                                            "<end_of_turn>",
                                            "<|endoftext|>",
                                            "<|end_of_text|>",
                                            "<end_of_utterance>",
                                            "<EOT>",
                                            "_<EOT>",
                                            "\u2581<EOT>",
                                            "<\uff5cend\u2581of\u2581sentence\uff5c>",
                                            "<|fim_pad|>",
                                            "<fim-pad>",
                                            "<fim_pad>",
                                            "<PAD>",
                                            "<|fim_repo|>",
                                            "<|repo_name|>",
                                            "<fim-repo>",
                                            "<REPO>",
                                            "<reponame>",
                                            "<|file_sep|>"};

constexpr const char* kKeys[] = {"eot_token_id", "eom_token_id", "fim_pad_token_id",
                                 "fim_rep_token_id", "fim_sep_token_id"};

}  // namespace

bool IsGgufEosSpelling(absl::string_view spelling) {
  return std::find(std::begin(kSpellings), std::end(kSpellings), spelling) != std::end(kSpellings);
}

absl::StatusOr<std::vector<int64_t>> GgufEosIds(const GgufFile& file) {
  const absl::StatusOr<std::vector<std::string>> tokens = file.Strings("tokenizer.ggml.tokens");
  if (!tokens.ok()) return tokens.status();
  const absl::StatusOr<std::vector<double>> types = file.Numbers("tokenizer.ggml.token_type");
  if (!types.ok()) return types.status();
  const auto is_used = [&](size_t id) {
    return id >= types->size() || (*types)[id] != static_cast<double>(kGgufUnused);
  };
  const auto find = [&](const std::string& key) -> const int64_t* {
    const auto found = file.metadata().find(absl::StrCat("tokenizer.ggml.", key));
    return found == file.metadata().end() ? nullptr : std::get_if<int64_t>(&found->second);
  };
  std::vector<int64_t> ends;
  if (const int64_t* id = find("eos_token_id"); id != nullptr) ends.push_back(*id);
  for (const char* key : kKeys) {
    const int64_t* id = find(key);
    if (id == nullptr || *id < 0 || *id >= static_cast<int64_t>(tokens->size())) continue;
    if (is_used(static_cast<size_t>(*id))) ends.push_back(*id);
  }
  const auto has = [&](absl::string_view spelling) {
    return std::find(tokens->begin(), tokens->end(), spelling) != tokens->end();
  };
  // With channels (OpenAI's harmony format) an answer has several messages.
  const bool goes_on = has(kReturn) && has(kCall);
  for (size_t i = 0; i < tokens->size(); ++i) {
    if (!IsGgufEosSpelling((*tokens)[i]) || !is_used(i) || (goes_on && (*tokens)[i] == kEnd))
      continue;
    ends.push_back(static_cast<int64_t>(i));
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

}  // namespace espalier
