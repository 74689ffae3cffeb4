// Protocol buffer messages as JSON for scripts: field names as in the .proto files, 64-bit integers
// as numbers, enum values by name, fields at their defaults included.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>

namespace espalier {

// Bytes fields (weights) are left out. Sub-messages that are not set are left out.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

// One line if `indent` is negative. Invalid UTF-8 is replaced.
std::string Dump(const nlohmann::ordered_json& json, int indent = -1);

}  // namespace espalier
