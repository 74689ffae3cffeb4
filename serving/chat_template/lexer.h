// A template's text in tokens, with white space taken off as transformers sets Jinja2 up:
// trim_blocks and lstrip_blocks on, no newline at the end.
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
  std::string text;  // of a sign: itself
  Value value;       // of a constant
};

// InvalidArgument with the line. The last token is kEnd.
absl::StatusOr<std::vector<Token>> Lex(absl::string_view source);

}  // namespace espalier::jinja
