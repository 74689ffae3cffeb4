// Schemas of calls whose parameters are written one by one, not as an object.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/status.h"

namespace espalier {

// `parameters` with what a reference at its top stands for in its place: "#/$defs/NAME" or
// "#/definitions/NAME", with nothing beside it but annotations. Others are left as they are.
nlohmann::ordered_json InlineTopLevelRef(nlohmann::ordered_json parameters);

// Whether parameters that keep to their own schemas, the required ones among them, keep to
// `parameters` as a whole. InvalidArgument naming what else it asks for.
absl::Status CheckParameterSchemas(const nlohmann::ordered_json& parameters);

}  // namespace espalier
