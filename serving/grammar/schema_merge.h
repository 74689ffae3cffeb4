// Two JSON schemas at once, as one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace espalier {

// Keywords that say nothing about what is accepted, or are looked at where they are used.
bool IsAnnotation(const std::string& key);

// A schema of the values that both accept, by keyword; where keywords cannot be joined (anyOf with
// anyOf, say) they are left to "allOf". Neither holds "$ref". A value that `a` or `b` accept by
// ignoring a keyword of another type may be refused. InvalidArgument naming the keyword that cannot
// be kept, or that leaves no value at all.
absl::StatusOr<nlohmann::ordered_json> MergeSchemas(const nlohmann::ordered_json& a,
                                                    const nlohmann::ordered_json& b);

}  // namespace espalier
