// The "pattern" of Replace and Split: {"String": "..."} or {"Regex": "..."}.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/json/json_reader.h"
#include "serving/tokenizer/regex.h"

namespace espalier {

class Pattern {
 public:
  explicit Pattern(Regex regex) : regex_(std::move(regex)) {}
  // REQUIRES: not empty.
  explicit Pattern(std::string literal) : literal_(std::move(literal)) {}

  using Matches = std::vector<std::pair<size_t, size_t>>;
  // See Regex::Matcher::FindAll.
  absl::Status FindAll(absl::string_view text, Matches* matches) const {
    return Search(*this).FindAll(text, matches);
  }

  // Reusable state for many short texts. Not thread-safe.
  class Search {
   public:
    explicit Search(const Pattern& pattern) : pattern_(pattern) {
      if (pattern.regex_.has_value()) matcher_.emplace(*pattern.regex_);
    }
    absl::Status FindAll(absl::string_view text, Matches* matches);

   private:
    const Pattern& pattern_;
    std::optional<Regex::Matcher> matcher_;
  };

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

// Returns nullopt, and reports an error to the reader, if it is no pattern.
std::optional<Pattern> ReadPattern(const JsonReader& json);

}  // namespace espalier
