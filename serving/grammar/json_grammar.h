// Grammars of JSON's own parts, which schemas are made of. RuleCall("json-...") names the rules
// that AddJsonRules adds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/grammar/grammar.h"

namespace espalier {

// json-value, json-object, json-array, json-string, json-char, json-number, json-integer and
// json-space.
void AddJsonRules(Grammar* grammar);

// One of these code points within a string, as JSON writes it: in one way only.
Expression JsonCharacterOf(const CodePoints& points);

// A string whose value is a text of `value`: its characters as JSON writes them. InvalidArgument if
// that is more than is left of the budget.
absl::StatusOr<Expression> JsonStringOf(const Expression& value, GrammarBudget* budget);

// "\"", the expression, "\"".
Expression Quoted(Expression inside);

// A string of plain characters that is none of `names`.
Expression JsonStringExcept(const std::vector<std::string>& names);

// "[" elements "]" and the like, with json-space between all parts.
Expression Spaced(std::vector<Expression> parts);

}  // namespace espalier
