// Which files of this host and which objects of S3 a client may name as a dataset.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/file_system.h"
#include "storage/s3/endpoint.h"
#include "storage/s3/s3_client.h"
#include "storage/s3/s3_file.h"

namespace espalier {

// The folders of --dataset-root. A trained model can repeat its dataset, so a client that may train
// on a file may read it: only regular files beneath these folders are opened, and none that belongs
// to the daemon itself (data folder, keys, certificates). Links are followed before both checks,
// and cannot be exchanged between check and opening.
//
// Likewise for s3://bucket/prefix: the daemon's credentials open no other object for a client.
// Nothing is sent before an object is opened. Thread-safe.
class DatasetRoots {
 public:
  // `roots` are absolute folders and s3:// prefixes; with none, nothing is opened. InvalidArgument
  // names a root that is "/", relative, no folder or no S3 URL.
  static absl::StatusOr<std::unique_ptr<DatasetRoots>> Create(
      const std::vector<std::string>& roots, s3::S3World world = s3::SystemS3World());

  // Opens no file that is `path` or beneath it, though it may lie beneath a root. It may be missing
  // until later; an empty path is ignored.
  void Exclude(const std::string& path);

  // PermissionDenied, with the remedy, says the same of each file and object that is not beneath a
  // root, whether it exists or not; it does not name the path.
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) const;

  // Opens an object by its s3:// URL; Open does so, too.
  absl::StatusOr<std::unique_ptr<s3::S3File>> OpenObject(const std::string& url) const;

 private:
  DatasetRoots(std::vector<std::string> roots, std::vector<s3::S3Url> prefixes, s3::S3World world)
      : roots_(std::move(roots)), prefixes_(std::move(prefixes)), world_(std::move(world)) {}
  absl::Status Refused() const;
  absl::Status RefusedObject() const;
  bool IsExcluded(const FilePlace& place) const;

  const std::vector<std::string> roots_;
  const std::vector<s3::S3Url> prefixes_;
  const s3::S3World world_;
  mutable absl::Mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<s3::S3Client>> clients_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> excluded_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
