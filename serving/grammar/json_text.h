// Grammars of JSON's own parts, which schemas are made of. RuleCall("json-...") names the rules
// that AddJsonRules adds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serving/grammar/expression.h"

namespace espalier {

// json-value, json-object, json-array, json-string, json-char, json-number, json-integer and
// json-space.
void AddJsonRules(Grammar* grammar);

// A string whose value is a text of `value`: its characters as JSON writes them.
Expression JsonStringOf(const Expression& value);

// A string of plain characters that is none of `names`.
Expression JsonStringExcept(const std::vector<std::string>& names);

// "[" elements "]" and the like, with json-space between all parts.
Expression Spaced(std::vector<Expression> parts);

// Integers from low to high, both included. REQUIRES: low <= high, both of at most 18 digits.
Expression IntegersBetween(int64_t low, int64_t high);

}  // namespace espalier
