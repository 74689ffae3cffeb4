#include "models/weights/additional_templates.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

constexpr char kFolder[] = "additional_chat_templates";
constexpr size_t kMaxTemplates = 64;
constexpr int64_t kMaxBytes = 1 << 20;

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ReadAdditionalTemplates(
    FileSystem& files, const std::string& folder, const std::vector<std::string>& names) {
  std::map<std::string, std::string> templates;
  if (std::find(names.begin(), names.end(), kFolder) == names.end()) return templates;
  const std::string place = JoinPath(folder, kFolder);
  const absl::StatusOr<std::vector<std::string>> found = files.List(place);
  if (!found.ok()) return found.status();
  for (const std::string& file : *found) {
    absl::string_view name = file;
    if (!absl::ConsumeSuffix(&name, ".jinja")) continue;
    if (templates.size() == kMaxTemplates) {
      return absl::InvalidArgumentError(absl::StrCat("'", place, "' has more than ", kMaxTemplates,
                                                     " templates; accepted: ", kMaxTemplates));
    }
    absl::StatusOr<std::string> text = ReadWholeFile(files, JoinPath(place, file), kMaxBytes);
    if (!text.ok()) return text.status();
    templates.emplace(std::string(name), *std::move(text));
  }
  return templates;
}

}  // namespace espalier
