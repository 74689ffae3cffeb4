#include "serving/tokenizer/pattern.h"

namespace espalier {

absl::Status Pattern::Search::FindAll(absl::string_view text, Matches* matches) {
  if (matcher_.has_value()) return matcher_->FindAll(text, matches);
  const std::string& literal = pattern_.literal_;
  for (size_t at = text.find(literal); at != absl::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    matches->emplace_back(at, at + literal.size());
  }
  return absl::OkStatus();
}

std::optional<Pattern> ReadPattern(const JsonReader& json) {
  if (!json.ok()) return std::nullopt;
  const bool literal = json.Has("String");
  if (literal) {
    std::string text = json.String("String");
    if (!json.ok()) return std::nullopt;
    if (!text.empty()) return Pattern(std::move(text));
  } else if (!json.Has("Regex")) {
    json.Invalid("expected {\"String\": ...} or {\"Regex\": ...}");
    return std::nullopt;
  }
  const std::string source = literal ? "" : json.String("Regex");
  if (!json.ok()) return std::nullopt;
  absl::StatusOr<Regex> regex = Regex::Compile(source);
  if (!regex.ok()) {
    json.Take(regex.status());
    return std::nullopt;
  }
  return Pattern(*std::move(regex));
}

}  // namespace espalier
