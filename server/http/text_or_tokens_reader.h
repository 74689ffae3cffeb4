// Reads a field that holds a text, a list of token ids, or a list of either.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "server/http/json_reader.h"

namespace espalier::openai {

inline constexpr size_t kMaxPromptTokens = 4 << 20;

// Calls `add` for each element, at most `most` times; it returns a message with fields `text` and
// `tokens`.
template <typename Add>
void ReadTextsOrTokens(JsonReader& reader, const std::string& field, size_t most, const Add& add) {
  using json = nlohmann::ordered_json;
  const json* value = reader.Find(field);
  const auto wrong = [&] {
    reader.Fail(field, absl::StrCat("field '", field,
                                    "' must be a string, a list of token ids, or a list of up to ",
                                    most, " of either"));
  };
  const auto read = [&](const json& one) {
    auto* const out = add();
    if (one.is_string()) {
      out->set_text(one.get<std::string>());
      return;
    }
    if (!one.is_array()) return wrong();
    out->mutable_tokens();
    const json object = {{field, one}};
    JsonReader tokens(object);
    tokens.Tokens(field, kMaxPromptTokens,
                  [&](int token) { out->mutable_tokens()->add_ids(token); });
    if (tokens.error()) reader.Fail(field, tokens.error()->message);
  };
  if (value == nullptr) {
    reader.Fail(field, absl::StrCat("field '", field, "' is missing"));
  } else if (value->is_array() && !value->empty() && !(*value)[0].is_number()) {
    if (value->size() > most) return wrong();
    for (const json& one : *value) read(one);
  } else if (value->is_string() || value->is_array()) {
    read(*value);
  } else {
    wrong();
  }
}

}  // namespace espalier::openai
