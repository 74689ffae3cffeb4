// Reads JSON schemas as their writers mean them: annotations of other tools are no errors.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace espalier {

// In every schema within `root`, in place:
//
// - {"type": T, "nullable": true} of OpenAPI 3.0 becomes {"type": [T, "null"]};
// - a "format" of strings that StringFormats lacks, and keywords of other types than "type" names,
//   are dropped. By JSON Schema they constrain nothing.
//
// Returns what is said but not enforced, by place, unknown keywords included; at most 20 texts such
// as `#/properties/tel/format: "phone" is not enforced`.
std::vector<std::string> RelaxJsonSchema(nlohmann::ordered_json* root);

}  // namespace espalier
