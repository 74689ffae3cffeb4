// JSON schemas as grammars. Every text of the grammar is a JSON document that the schema accepts;
// the grammar may be narrower than the schema:
//
// - Properties come in the schema's order. Properties that the schema does not name come only where
//   "additionalProperties" is given and not false.
// - "prefixItems" are all there. White space is at most one line's end with its indentation.
// - Integers have at most 18 digits.
//
// A keyword that could not be kept is refused by its place and name: nothing is ignored but
// annotations (title, description, default, examples, $comment and the like).
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/grammar/expression.h"

namespace espalier {

// InvalidArgument naming the place, as in "json_schema: #/properties/age/multipleOf: ...".
absl::StatusOr<Grammar> ParseJsonSchema(absl::string_view schema);

// Any JSON object.
Grammar JsonObjectGrammar();

}  // namespace espalier
