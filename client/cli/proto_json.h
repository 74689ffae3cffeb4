// Converts protocol buffer messages to JSON for scripts: field names as in the .proto files, 64-bit
// integers as numbers, enum values by name, fields at their defaults included.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>

namespace espalier {

// Leaves out bytes fields (weights) and unset sub-messages.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

// Returns one line if `indent` is negative. Replaces invalid UTF-8.
std::string Dump(const nlohmann::ordered_json& json, int indent = -1);

}  // namespace espalier
