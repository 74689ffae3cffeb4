// Values as Python writes them, for calls of tools: what ast.literal_eval takes of what JSON can
// hold, and JSON's own true, false and null.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

// Blanks and line breaks between the parts are passed over. `text` must outlive this.
class PythonLiteralParser {
 public:
  explicit PythonLiteralParser(absl::string_view text) : text_(text) {}

  // Whether the next character was this one.
  bool Take(char c);
  // It stays; '\0' at the end.
  char Next();
  bool AtEnd() { return Next() == '\0' && at_ == text_.size(); }
  // Of a function or a parameter, with dots; empty if there is none.
  std::string Name();
  // Strings, numbers, constants, lists, tuples (as lists) and dicts whose keys are strings. Null
  // and failed() if it is anything else, or nests deeper than 64.
  nlohmann::ordered_json Value();
  bool failed() const { return failed_; }

 private:
  nlohmann::ordered_json ValueAt(int depth);
  nlohmann::ordered_json ListUpTo(char close, int depth);
  nlohmann::ordered_json Dict(int depth);
  nlohmann::ordered_json Number();
  // One literal, or several beside each other, which are one.
  std::string String();
  void Escape(std::string* out);
  nlohmann::ordered_json Fail();

  const absl::string_view text_;
  size_t at_ = 0;
  bool failed_ = false;
};

}  // namespace espalier
