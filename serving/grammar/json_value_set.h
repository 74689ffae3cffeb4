// JSON values by what they are, not by how they are written: in a set, as lists of a schema may
// hold tens of thousands.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/container/flat_hash_set.h"

namespace espalier {

// A text that is equal for equal values: for 1 and 1.0, for objects in any order of their keys.
std::string CanonicalJson(const nlohmann::ordered_json& value);

class JsonValueSet {
 public:
  JsonValueSet() = default;
  explicit JsonValueSet(const nlohmann::ordered_json& list);

  bool Has(const nlohmann::ordered_json& value) const;
  bool Add(const nlohmann::ordered_json& value);  // false: it was in it

 private:
  absl::flat_hash_set<std::string> texts_;
};

}  // namespace espalier
