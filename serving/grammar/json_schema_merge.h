// Two JSON schemas at once, as one.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace espalier {

// Keywords that say nothing about what is accepted, or are looked at where they are used.
bool IsAnnotation(const std::string& key);

// The values that are accepted, where "const", "enum" or "type" leave a list of
// them: the constants that fit the type and are not excluded, each once.
// Nullopt if it is no list.
std::optional<nlohmann::ordered_json> FiniteValues(const nlohmann::ordered_json& schema);

// {"not": {"enum": [...]}}, as one keyword of several.
bool ExcludesValues(const nlohmann::ordered_json& schema);

// A schema of the values that both accept, by keyword; where keywords cannot be
// joined (anyOf with anyOf, say) they are left to "allOf". Neither holds
// "$ref". A value that `a` or `b` accept by ignoring a keyword of another type
// may be refused. InvalidArgument naming the keyword that cannot be kept;
// FailedPrecondition, naming one, if there is no value that both accept.
absl::StatusOr<nlohmann::ordered_json> MergeSchemas(const nlohmann::ordered_json& a,
                                                    const nlohmann::ordered_json& b);

}  // namespace espalier
