// Parses Python literals in tool calls: what ast.literal_eval accepts, limited to JSON's types,
// plus JSON's own true, false and null.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

// A cursor over `text`, which must outlive it. Skips whitespace between tokens.
class PythonLiteralParser {
 public:
  explicit PythonLiteralParser(absl::string_view text) : text_(text) {}

  // Consumes the next character if it is `c`; returns whether it did.
  bool Take(char c);
  // Returns the next character without consuming it; '\0' at the end.
  char Next();
  bool AtEnd() { return Next() == '\0' && at_ == text_.size(); }
  // Consumes the name of a function or parameter, dots included. Empty if there is none.
  std::string Name();
  // Consumes a string, number, constant, list, tuple (returned as a list) or dict with string keys.
  // Sets failed() and returns null for anything else, and for nesting deeper than 64.
  nlohmann::ordered_json Value();
  bool failed() const { return failed_; }

 private:
  nlohmann::ordered_json ValueAt(int depth);
  nlohmann::ordered_json ListUpTo(char close, int depth);
  nlohmann::ordered_json Dict(int depth);
  nlohmann::ordered_json Number();
  // One string literal, or several adjacent ones, which Python concatenates.
  std::string String();
  void Escape(std::string* out);
  nlohmann::ordered_json Fail();

  const absl::string_view text_;
  size_t at_ = 0;
  bool failed_ = false;
};

}  // namespace espalier
