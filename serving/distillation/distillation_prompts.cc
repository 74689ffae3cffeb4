#include "serving/distillation/distillation_prompts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"

namespace espalier {
namespace {

// Text bytes cut out per prompt token; no token is longer.
constexpr size_t kBytesPerToken = 8;

// Returns the first byte of the character at byte `at`, so that no piece starts inside a character.
size_t CharacterStart(absl::string_view text, size_t at) {
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<int>>> PromptsOfList(absl::string_view json,
                                                            const Tokenizer& tokenizer,
                                                            const PromptLimits& limits) {
  const auto list = ParseBoundedJson<nlohmann::json>(json).value_or(nlohmann::json());
  if (!list.is_array() || list.empty()) {
    return absl::InvalidArgumentError(
        "prompts: expected a JSON list of texts with at least one, as [\"one\", \"two\"]");
  }
  std::vector<std::vector<int>> prompts;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompts[", i, "] is a JSON ", list[i].type_name(), ", expected a text"));
    }
    if (static_cast<int>(prompts.size()) == limits.max_prompts) continue;
    absl::StatusOr<std::vector<int>> tokens =
        tokenizer.TryEncode(list[i].get<std::string>(), {.add_special = true});
    if (!tokens.ok()) {
      return absl::Status(tokens.status().code(),
                          absl::StrCat("prompts[", i, "]: ", tokens.status().message()));
    }
    if (tokens->empty()) {
      return absl::InvalidArgumentError(absl::StrCat("prompts[", i, "] has no tokens"));
    }
    if (static_cast<int>(tokens->size()) > limits.max_tokens) {
      tokens->erase(tokens->begin(), tokens->end() - limits.max_tokens);
    }
    prompts.push_back(*std::move(tokens));
  }
  return prompts;
}

absl::StatusOr<std::vector<std::vector<int>>> PromptsOfText(absl::string_view text,
                                                            const Tokenizer& tokenizer,
                                                            const PromptLimits& limits) {
  const size_t most = kBytesPerToken * static_cast<size_t>(limits.max_tokens);
  // At least one byte per token: which pieces are long enough is known only after tokenization.
  const size_t count = std::min(static_cast<size_t>(limits.max_prompts),
                                text.size() / static_cast<size_t>(limits.max_tokens));
  std::vector<std::vector<int>> prompts;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = CharacterStart(text, text.size() / count * i);
    const size_t end = CharacterStart(text, std::min(text.size(), begin + most));
    absl::StatusOr<std::vector<int>> tokens =
        tokenizer.TryEncode(text.substr(begin, end - begin), {.add_special = true});
    if (!tokens.ok()) {
      return absl::Status(
          tokens.status().code(),
          absl::StrCat("prompts: the text from byte ", begin, " on: ", tokens.status().message()));
    }
    if (static_cast<int>(tokens->size()) < limits.max_tokens) continue;
    tokens->resize(static_cast<size_t>(limits.max_tokens));
    prompts.push_back(*std::move(tokens));
  }
  if (!prompts.empty()) return prompts;
  return absl::InvalidArgumentError(absl::StrCat("prompts: the text has ", text.size(),
                                                 " bytes, too few for a prompt of ",
                                                 limits.max_tokens, " tokens"));
}

}  // namespace espalier
