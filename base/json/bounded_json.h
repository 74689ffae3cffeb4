// The way by which a text from outside becomes a JSON value: bounded, because those who copy, write
// or walk a value recurse once for each of its levels, and in time that is linear in the text.
// (nlohmann's own parser looks at all of a list for each object in it as soon as it has a
// callback.)
#pragma once

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

struct JsonLimits {
  int depth = 256;  // of arrays and objects in each other
  size_t fields_of_object = std::numeric_limits<size_t>::max();
  size_t fields = std::numeric_limits<size_t>::max();  // of all objects
  // Of all kinds, within each other: in memory even an empty object takes some thirty times its
  // text.
  size_t values = std::numeric_limits<size_t>::max();
  size_t values_but_numbers = std::numeric_limits<size_t>::max();
  // A field of the outermost object that may hold an object of more fields, none of which is looked
  // up by its name; they are not among all the others. Empty: there is none.
  absl::string_view wide;
  size_t fields_of_wide = 0;
};

// Of what comes with a request. Finding a field of an ordered object takes as long as the object
// has fields.
inline constexpr JsonLimits kRequestJson = {
    .depth = 256, .fields_of_object = 1024, .fields = 1 << 16, .values_but_numbers = 1 << 18};

// `Json`: nlohmann::json or nlohmann::ordered_json. InvalidArgument if the text is no JSON or
// exceeds a limit; the message goes behind the text's name: "is not valid JSON: ...". Of fields of
// one name in one object the last counts; `twice`, unless null, gets the first such name.
template <typename Json>
absl::StatusOr<Json> ParseBoundedJson(absl::string_view text, const JsonLimits& limits = {},
                                      std::string* twice = nullptr);

}  // namespace espalier
