// What a JSON schema does not accept, as schemas.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

// Schemas that together accept all that `schema` does not: not(A and B) is
// not(A) or not(B). `resolve` gives a schema without "$ref" for one that has
// it. What a property, or a part of "anyOf", must not be is left to "not" in
// turn, but for values, which come as {"not": {"enum":
// [...]}}. Unimplemented, naming the keyword, where that would not be a finite
// list of keywords.
absl::StatusOr<std::vector<nlohmann::ordered_json>> NegateSchema(
    const nlohmann::ordered_json& schema,
    const std::function<nlohmann::ordered_json(const nlohmann::ordered_json&)>& resolve);

}  // namespace espalier
