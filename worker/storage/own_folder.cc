#include "worker/storage/own_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status NotOurs(const std::string& path, const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the cache folder ", path, " ", what,
      ": somebody else may read or exchange what is in it; remove it, or give --cache-dir another "
      "folder"));
}

}  // namespace

std::string CacheParent(const std::string& parent) {
  std::string within = parent;
  std::error_code error;
  if (within.empty()) within = std::filesystem::temp_directory_path(error).string();
  if (error || within.empty()) within = "/tmp";
  std::filesystem::create_directories(within, error);
  return within;
}

absl::StatusOr<int> OpenOwnFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(
        absl::StrCat("the cache folder ", path, " cannot be made: ", std::strerror(errno),
                     "; give --cache-dir a folder that can be written to"));
  }
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return NotOurs(path, absl::StrCat("cannot be opened, ", std::strerror(errno)));
  struct stat info;
  const bool known = fstat(folder, &info) == 0;
  if (known && info.st_uid == geteuid() &&
      ((info.st_mode & 0777) == 0700 || fchmod(folder, 0700) == 0)) {
    return folder;
  }
  close(folder);
  return NotOurs(path, known ? absl::StrCat("belongs to user ", info.st_uid) : "is not readable");
}

}  // namespace espalier
