// A small flag parser: long names with one or two spellings of a value, one-letter short names as
// in FlexFlow, and answers that help.
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
  std::string name;  // long, without dashes
  FlagType type = FlagType::kSwitch;
  std::string value;  // what stands for the value in help: "N"; empty for switches
  std::string doc;
  char letter = 0;
  double min = -std::numeric_limits<double>::infinity();  // kInt, kNumber
  double max = std::numeric_limits<double>::infinity();
  bool repeated = false;                  // otherwise the last one counts
  std::vector<std::string> aliases = {};  // other long names
};

class ParsedFlags {
 public:
  // Asking for a flag that was not declared is a programmer error and aborts.
  bool Has(const std::string& name) const { return !Values(name).empty(); }
  std::string Text(const std::string& name, const std::string& fallback = "") const;
  int64_t Int(const std::string& name, int64_t fallback) const;
  double Number(const std::string& name, double fallback) const;
  const std::vector<std::string>& Values(const std::string& name) const;
  const std::vector<std::string>& positional() const { return positional_; }

 private:
  friend absl::StatusOr<ParsedFlags> ParseFlags(const std::vector<FlagSpec>&,
                                                const std::vector<std::string>&);
  std::map<std::string, std::vector<std::string>> values_;  // every declared name
  std::vector<std::string> positional_;
};

// Accepts --name=value, --name value, the same with one dash (as FlexFlow writes some long names),
// -e value, -e=value, -e5, and switches --name, --no-name
// (which takes --name back). "--" ends the flags. Errors are usage errors (see below) that name the
// flag, the value and what is accepted, or the flag that was probably meant.
absl::StatusOr<ParsedFlags> ParseFlags(const std::vector<FlagSpec>& specs,
                                       const std::vector<std::string>& args);

// Lines "  -e, --epochs=N    how often ...", aligned.
std::string DescribeFlags(const std::vector<FlagSpec>& specs);

// Of `known` the word that `given` was probably meant to be, or empty.
std::string Nearest(absl::string_view given, const std::vector<std::string>& known);

// What the person at the keyboard has to change, as opposed to what a coordinator refused: exit
// code 2.
absl::Status UsageError(const std::string& message);
bool IsUsageError(const absl::Status& status);

// The bytes of a file that was named on the command line; UsageError if it cannot be read, the
// second also if there is nothing in it.
absl::StatusOr<std::string> ReadFile(const std::string& path);
absl::StatusOr<std::string> ReadNonemptyFile(const std::string& path);

}  // namespace espalier
