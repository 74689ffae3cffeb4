// JSON schemas as grammars. Every text of the grammar is a JSON document that the schema accepts;
// the grammar may be narrower than the schema:
//
// - Properties come in the schema's order. Properties that the schema does not name come only where
//   "additionalProperties" is given and not false, or "patternProperties"; of these one at most
//   counts for "minProperties".
// - "prefixItems" are all there, and no others unless "items" is given. White space is at most one
// line's end with its indentation.
// - Integers have at most 18 digits; numbers with bounds or "multipleOf" at most 15, and no
//   exponent.
// - Formats are the plain part of what they stand for: days end at the 28th, addresses of IPv6 are
//   in lower case, URIs have a host.
// - What "allOf", or a keyword beside "$ref", "anyOf" or "oneOf", joins must be joinable by
// keyword:
//   two different patterns, say, are not. The branches of "oneOf" must exclude each other by their
//   types, their constants or a property's constants; one that "discriminator" names is then
//   required.
// - "not", the contrary of "if", and "contains" beside "maxContains" need what a schema does not
//   accept as a list of keywords (schema_negation.h): types, constants (of strings, of integers, of
//   lists), bounds, "required", "properties", and what "not", "anyOf" and "allOf" make of them.
//   Alternatives that do not exclude each other multiply: a dozen independent ones ("if",
//   "dependentRequired") are refused as too large.
// - "uniqueItems" is for items that are one of at most ten constants, without "contains"; what
//   "contains" counts, times the items that are counted, is at most 4,000.
//
// A keyword that could not be kept is refused by its place and name, as dependentSchemas and
// unevaluatedItems are: nothing is ignored but annotations (title, description, default, examples,
// $comment and the like).
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/grammar/grammar.h"

namespace espalier {

// InvalidArgument naming the place, as in "json_schema: #/properties/tags/uniqueItems: ...".
absl::StatusOr<Grammar> ParseJsonSchema(absl::string_view schema, GrammarBudget* budget);
absl::StatusOr<Grammar> ParseJsonSchema(absl::string_view schema);  // with one of its own

// Any JSON object.
Grammar JsonObjectGrammar();

}  // namespace espalier
