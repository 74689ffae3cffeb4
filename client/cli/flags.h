// A small flag parser: long names, one-letter short names as in FlexFlow, and helpful errors.
#pragma once

#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

enum class FlagType { kSwitch, kText, kInt, kNumber };

struct FlagSpec {
  std::string name;  // long name, without dashes
  FlagType type = FlagType::kSwitch;
  std::string value;  // placeholder of the value in help, such as "N"; empty for switches
  std::string doc;
  char letter = 0;
  double min = -std::numeric_limits<double>::infinity();  // kInt, kNumber
  double max = std::numeric_limits<double>::infinity();
  bool repeated = false;                  // if false, the last value counts
  std::vector<std::string> aliases = {};  // other long names
};

class ParsedFlags {
 public:
  // REQUIRES: `name` was declared; aborts otherwise.
  bool Has(const std::string& name) const { return !Values(name).empty(); }
  std::string Text(const std::string& name, const std::string& fallback = "") const;
  int64_t Int(const std::string& name, int64_t fallback) const;
  double Number(const std::string& name, double fallback) const;
  const std::vector<std::string>& Values(const std::string& name) const;
  const std::vector<std::string>& positional() const { return positional_; }

 private:
  friend absl::StatusOr<ParsedFlags> ParseFlags(const std::vector<FlagSpec>&,
                                                const std::vector<std::string>&);
  std::map<std::string, std::vector<std::string>> values_;  // has every declared name
  std::vector<std::string> positional_;
};

// Accepts --name=value, --name value, the same with one dash (as FlexFlow writes some long names),
// -e value, -e=value, -e5, and switches --name and --no-name (which unsets --name). "--" ends the
// flags. Returns usage errors that name the flag, the value and what is accepted, or suggest the
// closest flag.
absl::StatusOr<ParsedFlags> ParseFlags(const std::vector<FlagSpec>& specs,
                                       const std::vector<std::string>& args);

// Returns aligned lines "  -e, --epochs=N    how often ...".
std::string DescribeFlags(const std::vector<FlagSpec>& specs);

// An error that the user must fix, as opposed to one returned by a coordinator: exit code 2.
absl::Status UsageError(const std::string& message);
bool IsUsageError(const absl::Status& status);

// Returns the content of a file named on the command line. Returns UsageError if it cannot be read,
// and for ReadNonemptyFile also if it is empty.
absl::StatusOr<std::string> ReadFile(const std::string& path);
absl::StatusOr<std::string> ReadNonemptyFile(const std::string& path);

}  // namespace espalier
