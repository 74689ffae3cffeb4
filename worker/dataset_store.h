// Datasets by their uri: files that every worker sees, or artifacts downloaded from the coordinator
// into a cache by SHA-256.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/models.grpc.pb.h"
#include "espalier/v1/training.pb.h"
#include "base/file_system.h"
#include "storage/dataset.h"

namespace espalier {

// Thread-safe. Several workers may share one cache directory.
class DatasetStore {
 public:
  // `models` may be null: then only paths work.
  DatasetStore(v1::Models::StubInterface* models, FileSystem* files, std::string cache_dir)
      : models_(models), files_(files), cache_dir_(std::move(cache_dir)) {}

  // The dataset used last stays in memory. Errors name the uri.
  absl::StatusOr<std::shared_ptr<const Dataset>> Open(const v1::Dataset& dataset);

  // Path of the downloaded content of dataset artifact `name`.
  absl::StatusOr<std::string> Download(const std::string& name);

 private:
  v1::Models::StubInterface* const models_;
  FileSystem* const files_;
  const std::string cache_dir_;

  absl::Mutex mutex_;
  std::string last_key_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Dataset> last_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
