// Parses untrusted JSON within limits: of nesting, since copying, writing and walking a value
// recurse once per level; and in time linear in the text. (With a callback, nlohmann's own parser
// scans the whole enclosing array for each object in it.)
#pragma once

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

struct JsonLimits {
  int depth = 256;  // nesting of arrays and objects
  size_t fields_of_object = std::numeric_limits<size_t>::max();
  size_t fields = std::numeric_limits<size_t>::max();  // in all objects together
  // Values of all kinds: in memory an empty object takes about thirty times its text.
  size_t values = std::numeric_limits<size_t>::max();
  size_t values_but_numbers = std::numeric_limits<size_t>::max();
  // A field of the outermost object whose value, an object, may have more fields; they are not
  // looked up by name and do not count above. Empty: none.
  absl::string_view wide;
  size_t fields_of_wide = 0;
};

// Limits for requests. Looking up a field of an ordered object takes time linear in its number of
// fields.
inline constexpr JsonLimits kRequestJson = {
    .depth = 256, .fields_of_object = 1024, .fields = 1 << 16, .values_but_numbers = 1 << 18};

// `Json` is nlohmann::json or nlohmann::ordered_json. Returns InvalidArgument if the text is not
// JSON or exceeds a limit, with a message to follow the text's name: "is not valid JSON: ...". Of
// duplicate fields in an object the last counts; `twice`, unless null, gets the first duplicate
// name.
template <typename Json>
absl::StatusOr<Json> ParseBoundedJson(absl::string_view text, const JsonLimits& limits = {},
                                      std::string* twice = nullptr);

}  // namespace espalier
