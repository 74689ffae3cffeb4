// The AWS settings that the environment and the shared files (~/.aws) give.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file_system.h"

namespace espalier::s3 {

// Returns the variable's value, empty if there is none.
using Environment = std::function<std::string(const std::string& name)>;
Environment ProcessEnvironment();

// One profile of a shared file: names in lower case, and values.
using Profile = std::map<std::string, std::string>;

// Parses "[name]" (or "[profile name]") and "key = value" lines. `name` is the profile that is
// wanted; NotFound, with those that exist, if it is not there.
absl::StatusOr<Profile> ParseProfile(absl::string_view text, const std::string& name);

// AWS_PROFILE, or "default".
std::string ProfileName(const Environment& environment);
// AWS_SHARED_CREDENTIALS_FILE, or ~/.aws/credentials; AWS_CONFIG_FILE, or ~/.aws/config. Empty if
// there is no home either.
std::string CredentialsFile(const Environment& environment);
std::string ConfigFile(const Environment& environment);

// Reads the profile from a file; NotFound if there is no such file or profile.
absl::StatusOr<Profile> ReadProfile(FileSystem& files, const std::string& path,
                                    const std::string& name);

}  // namespace espalier::s3
