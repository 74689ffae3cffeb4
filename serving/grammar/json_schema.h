// JSON schemas as grammars. Every text of the grammar is a JSON document that the schema accepts.
// The grammar may be narrower than the schema:
//
// - Properties come in the schema's order. Properties that the schema does not name are possible
//   only with "additionalProperties" (given and not false) or "patternProperties"; at most one of
//   them counts towards "minProperties".
// - All "prefixItems" are present, and no other items unless "items" is given. White space is at
//   most one line break with indentation.
// - Integers have at most 18 digits; numbers with bounds or "multipleOf" at most 15, and no
//   exponent.
// - Formats cover the common subset: days end at the 28th, IPv6 addresses are in lower case, URIs
//   have a host.
// - "allOf", and keywords beside "$ref", "anyOf" or "oneOf", must be mergeable keyword by keyword;
//   two different patterns are not. The branches of "oneOf" must exclude each other by their types,
//   their constants or a property's constants; the property that "discriminator" names is required.
// - "not", the negation of "if", and "contains" with "maxContains" need the negation of a schema as
//   a list of keywords (json_schema_negation.h): types, constants (of strings, integers and lists),
//   bounds, "required", "properties", and "not", "anyOf" and "allOf" of them. Alternatives that do
//   not exclude each other multiply: a dozen independent "if" or "dependentRequired" are too large.
// - "uniqueItems" needs items with at most ten constants and no "contains". What "contains" counts,
//   times the number of items that are counted, is at most 4,000.
//
// Keywords of JSON Schema that cannot be enforced are refused by place and name, dependentSchemas
// and unevaluatedItems among them. Annotations (title, description, default, examples, $comment and
// so on) are ignored. So are, as JSON Schema has it, keywords that it does not define, keywords of
// other types than "type" names, and unknown formats: UnenforcedKeywords tells. OpenAPI's
// "nullable" allows null beside a "type".
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/grammar/grammar.h"

namespace espalier {

// Returns InvalidArgument naming the place, as in "json_schema: #/properties/tags/uniqueItems:
// ...".
absl::StatusOr<Grammar> ParseJsonSchema(absl::string_view schema, GrammarBudget* budget);
absl::StatusOr<Grammar> ParseJsonSchema(absl::string_view schema);  // with a budget of its own

// What `schema` says and ParseJsonSchema ignores, annotations apart: at most 20 texts such as
// `#/properties/tel/format: "phone" is not enforced`. Empty if it is no JSON.
std::vector<std::string> UnenforcedKeywords(absl::string_view schema);

// Any JSON object.
Grammar JsonObjectGrammar();

}  // namespace espalier
