// Chat templates with names, in files of their own: transformers writes them so since 4.50.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_system.h"

namespace espalier {

// The texts of additional_chat_templates/NAME.jinja in a model's folder, by name; none if `names`,
// what the folder has, is without it. InvalidArgument for more than 64 of them, or more than 1 MiB
// in one.
absl::StatusOr<std::map<std::string, std::string>> ReadAdditionalTemplates(
    FileSystem& files, const std::string& folder, const std::vector<std::string>& names);

}  // namespace espalier
