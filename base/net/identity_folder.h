// A folder of files that belong together, such as a key and its certificate, which are replaced at
// once: a reader, or a process that starts after a crash, finds all old or all new ones.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace espalier {

// Makes "`folder`/current" a folder with exactly these files (name to content), for this user only
// and durable. `folder` must exist; what "current" was before is removed.
absl::Status WriteIdentity(const std::string& folder,
                           const std::map<std::string, std::string>& files);
// A lock on a folder that exists, which one holder at a time has, of all processes and hosts that
// share the folder. It ends with the holder.
class FolderLock {
 public:
  // Waits until nobody else has it.
  static absl::StatusOr<FolderLock> Take(const std::string& folder);
  FolderLock(FolderLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int file) : file_(file) {}
  int file_;
};

// Path of a file of it.
std::string IdentityPath(const std::string& folder, const std::string& name);

}  // namespace espalier
