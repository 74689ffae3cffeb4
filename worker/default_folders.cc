#include "worker/default_folders.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr char kOfRootCache[] = "/var/cache/espalier";
// Not /var/lib/espalier, which may be the coordinator's data folder.
constexpr char kOfRootState[] = "/var/lib/espalier-worker";

// XDG variables count only if they are absolute.
bool IsAbsolute(const std::string& path) { return absl::StartsWith(path, "/"); }

}  // namespace

DefaultFolders ChooseDefaultFolders(
    const std::function<std::string(const std::string&)>& environment, bool is_root,
    const std::string& host) {
  const auto choose = [&](const char* of_service, const char* of_root, const char* of_user,
                          const char* below_home) -> std::string {
    const std::string service = environment(of_service);
    // Several are separated by colons.
    if (IsAbsolute(service)) return service.substr(0, service.find(':'));
    if (is_root) return of_root;
    std::string base = environment(of_user);
    const std::string home = environment("HOME");
    if (!IsAbsolute(base)) base = IsAbsolute(home) ? absl::StrCat(home, "/", below_home) : "";
    return base.empty() ? "" : absl::StrCat(base, "/espalier/", host);
  };
  return {choose("CACHE_DIRECTORY", kOfRootCache, "XDG_CACHE_HOME", ".cache"),
          choose("STATE_DIRECTORY", kOfRootState, "XDG_STATE_HOME", ".local/state")};
}

absl::Status MakeWritableFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("the folder ", path, " cannot be made: ", error.message()));
  }
  if (access(path.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("the folder ", path, " cannot be written to"));
}

}  // namespace espalier
