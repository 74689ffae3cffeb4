// The conjunction of two JSON schemas as one schema.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace espalier {

// If "const", "enum" or "type" leave a finite list of values: the constants that have the type and
// are not excluded, without duplicates. Otherwise nullopt.
std::optional<nlohmann::ordered_json> FiniteValues(const nlohmann::ordered_json& schema);

// Whether the schema has {"not": {"enum": [...]}}, perhaps beside other keywords.
bool ExcludesValues(const nlohmann::ordered_json& schema);

// Merges `a` and `b` keyword by keyword. Keywords that cannot be merged (two anyOf, say) go to
// "allOf". REQUIRES: neither has "$ref". The result may refuse a value that `a` or `b` accepts
// because a keyword does not apply to its type. Returns InvalidArgument naming the keyword that
// cannot be merged, or FailedPrecondition naming a keyword if no value satisfies both.
absl::StatusOr<nlohmann::ordered_json> MergeSchemas(const nlohmann::ordered_json& a,
                                                    const nlohmann::ordered_json& b);

}  // namespace espalier
