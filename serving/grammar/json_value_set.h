// A hash set of JSON values, compared by value, not by spelling. Lists in schemas may hold tens of
// thousands.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/container/flat_hash_set.h"

namespace espalier {

// A text that is the same for equal values: 1 and 1.0, or objects whose keys are in another order.
std::string CanonicalJson(const nlohmann::ordered_json& value);

class JsonValueSet {
 public:
  JsonValueSet() = default;
  explicit JsonValueSet(const nlohmann::ordered_json& list);

  bool Has(const nlohmann::ordered_json& value) const;
  bool Add(const nlohmann::ordered_json& value);  // false if it was present

 private:
  absl::flat_hash_set<std::string> texts_;
};

}  // namespace espalier
