// Splits a template into tokens and strips white space with transformers' settings: trim_blocks,
// lstrip_blocks, no newline at the end.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/chat_template/value.h"

namespace espalier::jinja {

struct Token {
  enum class Type {
    kText,
    kOpenOutput,
    kCloseOutput,
    kOpenBlock,
    kCloseBlock,
    kName,
    kString,
    kInt,
    kFloat,
    kSign,
    kEnd
  };
  Type type;
  int line;
  std::string text;  // of a sign: the sign itself
  Value value;       // of a literal
};

// Returns InvalidArgument with the line of the error. The last token is kEnd.
absl::StatusOr<std::vector<Token>> Lex(absl::string_view source);

}  // namespace espalier::jinja
