#include "storage/s3/aws_profile.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace espalier::s3 {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;

std::string SharedFile(const Environment& environment, const char* variable, const char* name) {
  std::string path = environment(variable);
  const bool in_home = path.empty() || absl::StartsWith(path, "~/");
  if (!in_home) return path;
  std::string home = environment("HOME");
  if (home.empty()) {
    passwd entry, *found = nullptr;
    char buffer[4096];
    if (getpwuid_r(geteuid(), &entry, buffer, sizeof(buffer), &found) == 0 && found != nullptr) {
      home = entry.pw_dir;
    }
  }
  if (home.empty()) return "";
  return path.empty() ? JoinPath(home, absl::StrCat(".aws/", name))
                      : JoinPath(home, path.substr(2));
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value == nullptr ? "" : value);
  };
}

std::string ProfileName(const Environment& environment) {
  std::string name = environment("AWS_PROFILE");
  return name.empty() ? "default" : name;
}

std::string CredentialsFile(const Environment& environment) {
  return SharedFile(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials");
}

std::string ConfigFile(const Environment& environment) {
  return SharedFile(environment, "AWS_CONFIG_FILE", "config");
}

absl::StatusOr<Profile> ParseProfile(absl::string_view text, const std::string& name) {
  Profile profile;
  std::vector<std::string> names;
  bool wanted = false, found = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const bool nested = !line.empty() && absl::ascii_isspace(static_cast<unsigned char>(line[0]));
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (line[0] == '[') {
      absl::string_view section = line.substr(1, line.find(']') - 1);
      section = absl::StripAsciiWhitespace(section);
      if (absl::ConsumePrefix(&section, "profile ")) section = absl::StripAsciiWhitespace(section);
      names.emplace_back(section);
      wanted = section == name;
      found = found || wanted;
      continue;
    }
    const size_t equals = line.find('=');
    if (!wanted || nested || equals == absl::string_view::npos) continue;
    const std::string key =
        absl::AsciiStrToLower(absl::StripAsciiWhitespace(line.substr(0, equals)));
    profile[key] = std::string(absl::StripAsciiWhitespace(line.substr(equals + 1)));
  }
  if (found) return profile;
  return absl::NotFoundError(absl::StrCat("has no profile '", name, "'; it has: ",
                                          names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

absl::StatusOr<Profile> ReadProfile(FileSystem& files, const std::string& path,
                                    const std::string& name) {
  if (path.empty()) return absl::NotFoundError("there is no home folder with .aws in it");
  absl::StatusOr<std::string> text = ReadWholeFile(files, path, kMaxFileBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<Profile> profile = ParseProfile(*text, name);
  if (profile.ok()) return profile;
  return absl::Status(profile.status().code(),
                      absl::StrCat(path, " ", std::string(profile.status().message())));
}

}  // namespace espalier::s3
