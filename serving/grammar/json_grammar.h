// Grammars of JSON's building blocks. RuleCall("json-...") calls the rules that AddJsonRules adds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/grammar/grammar.h"

namespace espalier {

// Adds json-value, json-object, json-array, json-string, json-char, json-number, json-integer and
// json-space.
void AddJsonRules(Grammar* grammar);

// One of these code points inside a JSON string. Each has exactly one spelling.
Expression JsonCharacterOf(const CodePoints& points);

// A JSON string whose value matches `value`. Returns InvalidArgument if the budget is exhausted.
absl::StatusOr<Expression> JsonStringOf(const Expression& value, GrammarBudget* budget);

// The expression between quotation marks.
Expression Quoted(Expression inside);

// A JSON string of unescaped characters that is none of `names`.
Expression JsonStringExcept(const std::vector<std::string>& names);

// The parts with json-space between them.
Expression WithSpaces(std::vector<Expression> parts);

}  // namespace espalier
