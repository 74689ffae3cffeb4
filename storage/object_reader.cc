#include "storage/object_reader.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace espalier {

absl::Status CheckObjectName(absl::string_view name) {
  for (const absl::string_view part : absl::StrSplit(name, '/')) {
    const bool control = part.find_first_of(absl::string_view("\0\n\r", 3)) != part.npos;
    if (part.empty() || part == "." || part == ".." || control) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", absl::CHexEscape(name.substr(0, 200)),
          "' is no name of an object; accepted: parts separated by '/', none of them '.' or '..'"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadObject(ObjectReader& store, const std::string& name,
                                       int64_t limit) {
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = store.Open(name);
  if (!file.ok()) return file.status();
  return ReadWhole(**file, limit);
}

}  // namespace espalier
