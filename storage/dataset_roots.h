// Which files of this host a client may name as a dataset.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/file_system.h"

namespace espalier {

// The folders of --dataset-root. A trained model can repeat its dataset, so a client that may train
// on a file may read it: only regular files beneath these folders are opened, and none that belongs
// to the daemon itself (data folder, keys, certificates). Links are followed before both checks,
// and cannot be exchanged between check and opening. Thread-safe.
class DatasetRoots {
 public:
  // `roots` are absolute folders; with none, no file is opened. InvalidArgument names a root that
  // is "/", relative or no folder.
  static absl::StatusOr<std::unique_ptr<DatasetRoots>> Create(
      const std::vector<std::string>& roots);

  // Opens no file that is `path` or beneath it, though it may lie beneath a root. It may be missing
  // until later; an empty path is ignored.
  void Exclude(const std::string& path);

  // PermissionDenied, with the remedy, says the same of each file that is not beneath a root,
  // whether it exists or not; it does not name the path.
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) const;

 private:
  explicit DatasetRoots(std::vector<std::string> roots) : roots_(std::move(roots)) {}
  absl::Status Refused() const;
  bool IsExcluded(const FilePlace& place) const;

  const std::vector<std::string> roots_;
  mutable absl::Mutex mutex_;
  std::vector<std::string> excluded_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
