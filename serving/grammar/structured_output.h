// Structured output: the constraint that a request puts on its answer.
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/grammar/grammar.h"
#include "serving/grammar/structural_tag.h"

namespace espalier {

// Reasoning before the structured part: any text up to `close`, which is optional unless begun.
struct ReasoningPrefix {
  std::string open;        // an answer that begins with other text has no reasoning
  std::string close;       // empty: there is no reasoning
  bool in_prompt = false;  // the prompt already contains `open`

  auto operator<=>(const ReasoningPrefix&) const = default;
};

struct StructuredOutput {
  enum Kind {
    kRegex,
    kJsonSchema,
    kJsonObject,
    kGbnf,
    kChoice,
    kStructuralTag,
    kXgrammarStructuralTag
  };

  Kind kind = kJsonObject;
  std::string text;                  // kRegex, kJsonSchema, kGbnf, kXgrammarStructuralTag
  std::vector<std::string> choices;  // kChoice
  StructuralTag structural_tag;      // kStructuralTag
  ReasoningPrefix reasoning;
  std::vector<StructuredOutput> alternatives;  // also accepted; their own `reasoning` is ignored

  // Not defaulted: StructuredOutput is incomplete where `alternatives` is declared.
  std::strong_ordering operator<=>(const StructuredOutput& other) const;
  bool operator==(const StructuredOutput& other) const { return (*this <=> other) == 0; }
};

// Returns InvalidArgument naming the kind and the place of the error.
absl::StatusOr<Grammar> GrammarOf(const StructuredOutput& output);

}  // namespace espalier
