// Reads a flag that names one of several choices.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/flags.h"
#include "client/terminal/text.h"

namespace espalier {

// Returns the value of the choice named `given`. The usage error lists the names.
template <typename T>
absl::StatusOr<T> OneOf(const std::string& flag, const std::string& given,
                        const std::vector<std::pair<std::string, T>>& choices) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) {
    if (name == given) return value;
    names.push_back(name);
  }
  return UsageError(absl::StrCat("--", flag, " is \"", Printable(given),
                                 "\"; accepted: ", absl::StrJoin(names, ", ")));
}

}  // namespace espalier
