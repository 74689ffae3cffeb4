// Regular expressions: the regular part of what ECMAScript and Python have in common.
//
// Alternation, groups, classes, quantifiers (lazy ones mean the same here), . \d \w \s and their
// complements (as in both languages), \n \r \t \f \v \0 \xHH \uHHHH \u{H...}, ^ at the beginning
// and $ at the end. Look-around, back-references, word boundaries, possessive quantifiers and flags
// are refused by name.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/grammar/grammar.h"

namespace espalier {

// The texts that the pattern matches as a whole; with `search` those that contain a match, as for
// "pattern" in a JSON schema. Returns InvalidArgument with the byte offset of the error, or at
// which the budget is exhausted.
absl::StatusOr<Expression> ParseRegex(absl::string_view pattern, GrammarBudget* budget,
                                      bool search = false);

}  // namespace espalier
