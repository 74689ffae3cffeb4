// Opens datasets by URI: files that every worker can read, or artifacts downloaded from the
// coordinator into a cache keyed by SHA-256.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/file_system.h"
#include "espalier/v1/models.grpc.pb.h"
#include "espalier/v1/training.pb.h"
#include "storage/dataset.h"
#include "storage/dataset_roots.h"

namespace espalier {

// Thread-safe. Several workers may share one cache directory.
class DatasetStore {
 public:
  // With a null `models` only paths work. Paths are opened beneath `roots` only.
  DatasetStore(v1::Models::StubInterface* models, FileSystem* files, std::string cache_dir,
               const DatasetRoots* roots)
      : models_(models), files_(files), cache_dir_(std::move(cache_dir)), roots_(roots) {}

  // Keeps the last dataset in memory. Errors name the URI.
  absl::StatusOr<std::shared_ptr<const Dataset>> Open(const v1::Dataset& dataset);

  // Downloads dataset artifact `name` if it is not cached and returns the path of its content.
  absl::StatusOr<std::string> Download(const std::string& name);

 private:
  v1::Models::StubInterface* const models_;
  FileSystem* const files_;
  const std::string cache_dir_;
  const DatasetRoots* const roots_;

  absl::Mutex mutex_;
  std::string last_key_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Dataset> last_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
