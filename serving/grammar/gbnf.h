// GBNF, the grammar notation of llama.cpp:
//
//   root  ::= "yes" | "no" reason?     # texts match the rule "root"
//   reason ::= " because " [a-z ]{1,40}
//
// Literals with escapes (\n \r \t \\ \" \] \xHH \uHHHH \UHHHHHHHH), classes [a-z] and [^...], any
// character ., groups, * + ? {n} {n,} {n,m}, alternatives, comments.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/grammar/grammar.h"

namespace espalier {

// Returns InvalidArgument with the line of the error, or naming the rule that is defined twice.
absl::StatusOr<Grammar> ParseGbnf(absl::string_view text, GrammarBudget* budget);

}  // namespace espalier
