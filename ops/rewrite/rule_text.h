// The text of rules before it means anything: lines, words, and alternatives written out.
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

// One text for each rule and each choice of its alternatives.
absl::StatusOr<std::vector<RuleText>> SplitRules(const std::string& text);

// The words of a line: names (with dots inside), numbers, "...", quoted strings with their first
// quote, and single characters.
std::vector<std::string> SplitWords(const std::string& line);

bool IsName(const std::string& word);
bool IsNumber(const std::string& word);

// "line 3, rule 'a': expected ..., found ..."
absl::Status RuleError(int line, const std::string& rule, const std::string& what);

}  // namespace espalier
