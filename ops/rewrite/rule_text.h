// The lexer of rule text: lines, words and expansion of alternatives.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

struct RuleLine {
  int number = 0;            // in the text, from 1
  bool replacement = false;  // below "=>"
  std::string text;          // without comment
};

struct RuleText {
  std::string name;
  int number = 0;
  std::vector<RuleLine> lines;
};

// Returns one text per rule and combination of its alternatives.
absl::StatusOr<std::vector<RuleText>> SplitRules(const std::string& text);

// Splits a line into names (with dots inside), numbers, "...", quoted strings with their opening
// quote, and single characters.
std::vector<std::string> SplitWords(const std::string& line);

bool IsName(const std::string& word);
bool IsNumber(const std::string& word);

// "line 3, rule 'a': expected ..., found ..."
absl::Status RuleError(int line, const std::string& rule, const std::string& what);

}  // namespace espalier
