#include "client/cli/column_flags.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/terminal/text.h"

namespace espalier {

FlagSpec ColumnFlag() {
  return {"input",
          FlagType::kText,
          "NAME=COLUMN",
          "dataset column for a graph input (the column of the same name)",
          0,
          0,
          0,
          true};
}

absl::StatusOr<std::map<std::string, std::string>> ColumnsOf(const ParsedFlags& flags) {
  std::map<std::string, std::string> columns;
  for (const std::string& pair : flags.Values("input")) {
    const std::vector<std::string> parts = absl::StrSplit(pair, absl::MaxSplits('=', 1));
    if (parts.size() != 2 || parts[0].empty() || parts[1].empty()) {
      return UsageError(
          absl::StrCat("--input is \"", Printable(pair), "\"; accepted: NAME=COLUMN, as labels=y"));
    }
    columns[parts[0]] = parts[1];
  }
  return columns;
}

}  // namespace espalier
