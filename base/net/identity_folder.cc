#include "base/net/identity_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random_id.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr char kCurrent[] = "current";
constexpr char kVersion[] = "version-";

absl::Status NotWritten(const std::string& path, int number) {
  return absl::ErrnoToStatus(number, absl::StrCat(path, " cannot be written"));
}

absl::Status WriteFile(const std::string& path, const std::string& content) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return NotWritten(path, errno);
  size_t at = 0;
  while (at < content.size()) {
    const ssize_t written = write(file, content.data() + at, content.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) break;
    at += static_cast<size_t>(written);
  }
  const int number = at < content.size() || fsync(file) != 0 ? errno : 0;
  close(file);
  return number == 0 ? absl::OkStatus() : NotWritten(path, number);
}

void SyncFolder(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  fsync(folder);
  close(folder);
}

}  // namespace

absl::Status WriteIdentity(const std::string& folder,
                           const std::map<std::string, std::string>& files) {
  const absl::StatusOr<std::string> random = RandomId();
  if (!random.ok()) return random.status();
  const std::string version = absl::StrCat(kVersion, *random);
  const std::string made = absl::StrCat(folder, "/", version);
  if (mkdir(made.c_str(), 0700) != 0) return NotWritten(made, errno);
  for (const auto& [name, content] : files) {
    if (absl::Status s = WriteFile(absl::StrCat(made, "/", name), content); !s.ok()) return s;
  }
  SyncFolder(made);
  const std::string link = absl::StrCat(folder, "/", *random, ".tmp");
  const std::string current = absl::StrCat(folder, "/", kCurrent);
  if (symlink(version.c_str(), link.c_str()) != 0 || rename(link.c_str(), current.c_str()) != 0) {
    return NotWritten(current, errno);
  }
  SyncFolder(folder);
  // What is left of the last one, and of writers that were interrupted.
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool old = absl::StartsWith(name, kVersion) && name != version;
    std::error_code ignored;
    if (old || absl::EndsWith(name, ".tmp")) fs::remove_all(entry.path(), ignored);
  }
  return absl::OkStatus();
}

absl::StatusOr<FolderLock> FolderLock::Take(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/lock");
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  while (file >= 0 && flock(file, LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    const int number = errno;
    close(file);
    return absl::ErrnoToStatus(number, absl::StrCat(path, " cannot be locked"));
  }
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, " cannot be locked"));
  return FolderLock(file);
}

FolderLock::~FolderLock() {
  if (file_ >= 0) close(file_);
}

std::string IdentityPath(const std::string& folder, const std::string& name) {
  return absl::StrCat(folder, "/", kCurrent, "/", name);
}

}  // namespace espalier
