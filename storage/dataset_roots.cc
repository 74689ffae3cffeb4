#include "storage/dataset_roots.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

}  // namespace

absl::StatusOr<std::unique_ptr<DatasetRoots>> DatasetRoots::Create(
    const std::vector<std::string>& roots) {
  for (const std::string& root : roots) {
    std::error_code error;
    const char* problem = nullptr;
    if (root.empty() || root[0] != '/') {
      problem = "it must be an absolute path";
    } else if (!fs::is_directory(root, error)) {
      problem = "there is no such folder";
    } else if (RealPath(root) == "/") {
      problem = "it holds every file of this host; name the folder of the datasets";
    }
    if (problem == nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat("--dataset-root=", root, ": ", problem));
  }
  return std::unique_ptr<DatasetRoots>(new DatasetRoots(roots));
}

void DatasetRoots::Exclude(const std::string& path) {
  if (path.empty()) return;
  absl::MutexLock lock(&mutex_);
  if (std::find(excluded_.begin(), excluded_.end(), path) == excluded_.end()) {
    excluded_.push_back(path);
  }
}

absl::Status DatasetRoots::Refused() const {
  if (roots_.empty()) {
    return absl::PermissionDeniedError(
        "files of this host are not opened for clients; upload the file, or have espalierd and its "
        "workers started with --dataset-root=FOLDER");
  }
  return absl::PermissionDeniedError(
      absl::StrCat("it is no file that may be read beneath a folder of --dataset-root (",
                   absl::StrJoin(roots_, ", "), "); move it there, or upload it"));
}

bool DatasetRoots::IsExcluded(const FilePlace& place) const {
  absl::MutexLock lock(&mutex_);
  return std::any_of(excluded_.begin(), excluded_.end(), [&](const std::string& path) {
    struct stat info;
    const bool same = stat(path.c_str(), &info) == 0 && info.st_dev == place.device &&
                      info.st_ino == place.inode;  // also by another name (a hard link)
    return same || IsBeneath(place.path, RealPath(path));
  });
}

absl::StatusOr<std::unique_ptr<ReadableFile>> DatasetRoots::Open(const std::string& path) const {
  // By name alone first: what is outside must not be told from what does not exist.
  const std::string named = fs::path(path).lexically_normal().string();
  std::vector<std::string> real_roots;
  bool beneath = false;
  for (const std::string& root : roots_) {
    real_roots.push_back(RealPath(root));
    beneath = beneath || IsBeneath(named, real_roots.back()) ||
              IsBeneath(named, (fs::path(root) / "").lexically_normal().parent_path().string());
  }
  if (!beneath) return Refused();
  return OpenIf(path, [&](const FilePlace& place) {
    const bool allowed =
        std::any_of(real_roots.begin(), real_roots.end(),
                    [&](const std::string& root) { return IsBeneath(place.path, root); });
    return allowed && !IsExcluded(place) ? absl::OkStatus() : Refused();
  });
}

}  // namespace espalier
