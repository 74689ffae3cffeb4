// Named chat templates in files of their own, as transformers writes them since 4.50.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_system.h"

namespace espalier {

// Returns the texts of additional_chat_templates/NAME.jinja in a model's folder by name; empty if
// `names`, the folder's entries, lacks it. Returns InvalidArgument for more than 64 templates or
// more than 1 MiB in one.
absl::StatusOr<std::map<std::string, std::string>> ReadAdditionalTemplates(
    FileSystem& files, const std::string& folder, const std::vector<std::string>& names);

}  // namespace espalier
