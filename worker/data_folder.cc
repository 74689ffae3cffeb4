#include "worker/data_folder.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"

namespace espalier {

absl::Status DataFolder::Join(const std::string& of_coordinator) {
  const std::string path = given_.empty() ? of_coordinator : given_;
  if (path.empty() || path[0] != '/' || RealPath(path) == "/") {
    return absl::FailedPreconditionError(absl::StrCat(
        "the data folder of the coordinator is '", absl::Utf8SafeCHexEscape(path.substr(0, 300)),
        "', expected an absolute path of a folder below /; give --data-dir, or update espalierd"));
  }
  absl::MutexLock lock(&mutex_);
  path_ = path;
  return absl::OkStatus();
}

std::string DataFolder::path() const {
  absl::MutexLock lock(&mutex_);
  return path_;
}

absl::Status DataFolder::Check(const std::string& field, const std::string& path) const {
  const std::string folder = this->path();
  if (!folder.empty() && !path.empty() && path[0] == '/' &&
      IsBeneath(RealPath(path), RealPath(folder))) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat(field, ": '", absl::Utf8SafeCHexEscape(path.substr(0, 300)),
                   "' is not beneath the coordinator's data folder (",
                   folder.empty() ? "this worker has not joined" : folder,
                   "), the only one that this worker uses; see --data-dir"));
}

}  // namespace espalier
