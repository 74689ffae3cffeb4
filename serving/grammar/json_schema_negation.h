// The negation of a JSON schema.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

// Returns schemas that together accept what `schema` does not: not(A and B) is not(A) or not(B).
// `resolve` removes "$ref". Negated properties and parts of "anyOf" are left to "not", except for
// values, which become {"not": {"enum": [...]}}. Returns Unimplemented naming the keyword if the
// negation is no finite list of keywords.
absl::StatusOr<std::vector<nlohmann::ordered_json>> NegateSchema(
    const nlohmann::ordered_json& schema,
    const std::function<nlohmann::ordered_json(const nlohmann::ordered_json&)>& resolve);

}  // namespace espalier
