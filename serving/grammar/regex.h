// Regular expressions: what ECMAScript's and Python's have in common, without what is not regular.
//
// Alternation, groups, classes, quantifiers (lazy ones mean the same here), . \d \w \s and their
// complements (each what it is in both), \n \r \t \f \v \0 \xHH \uHHHH \u{H...}, ^ at the beginning
// and $ at the end. Look-around, back-references, word boundaries, possessive quantifiers and flags
// are refused by name.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/grammar/grammar.h"

namespace espalier {

// The texts that the pattern matches as a whole; with `search`, those that hold a match somewhere,
// as "pattern" in a JSON schema means it. InvalidArgument with the byte at which it goes wrong,
// or at which the budget is used up.
absl::StatusOr<Expression> ParseRegex(absl::string_view pattern, GrammarBudget* budget,
                                      bool search = false);

}  // namespace espalier
