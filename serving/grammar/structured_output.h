// What a request may demand of its answer's form.
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/grammar/grammar.h"
#include "serving/grammar/structural_tag.h"

namespace espalier {

// Thoughts before the form begins: any text up to `close`, without which there are none.
struct ReasoningPrefix {
  std::string open;    // an answer that begins otherwise has no reasoning
  std::string close;   // empty: the form begins at once
  bool begun = false;  // the prompt has opened them

  auto operator<=>(const ReasoningPrefix&) const = default;
};

struct StructuredOutput {
  enum Kind { kRegex, kJsonSchema, kJsonObject, kGbnf, kChoice, kStructuralTag, kXgrammarStructuralTag };

  Kind kind = kJsonObject;
  std::string text;                  // of the regular expression, schema, grammar, tag's format
  std::vector<std::string> choices;  // kChoice
  StructuralTag structural_tag;                 // kStructuralTag
  ReasoningPrefix reasoning;
  std::vector<StructuredOutput> alternatives;  // or one of these, whose own reasoning do not count

  // Not by default: the compiler cannot while the type of `otherwise` is not complete.
  std::strong_ordering operator<=>(const StructuredOutput& other) const;
  bool operator==(const StructuredOutput& other) const { return (*this <=> other) == 0; }
};

// InvalidArgument, naming the form and the place in it.
absl::StatusOr<Grammar> GrammarOf(const StructuredOutput& output);

}  // namespace espalier
