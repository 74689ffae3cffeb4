// Checks of JSON schemas for formats that write a call's parameters one by one, not as an object.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/status.h"

namespace espalier {

// Replaces a top-level "$ref" to "#/$defs/NAME" or "#/definitions/NAME" by its target, if only
// annotations stand beside it. Returns other schemas unchanged.
nlohmann::ordered_json InlineTopLevelRef(nlohmann::ordered_json parameters);

// Returns OK if arguments satisfy `parameters` whenever each of them satisfies its own schema and
// the required ones are present. Otherwise returns InvalidArgument naming the keyword that prevents
// this.
absl::Status CheckParameterSchemas(const nlohmann::ordered_json& parameters);

}  // namespace espalier
