// Opens datasets by URI: files of this host, or artifacts of the coordinator and objects of S3,
// which are downloaded and kept in a cache.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/models.grpc.pb.h"
#include "espalier/v1/training.pb.h"
#include "storage/dataset.h"
#include "storage/dataset_roots.h"
#include "worker/storage/host_cache.h"

namespace espalier {

// Thread-safe.
class DatasetStore {
 public:
  // With a null `models` there are no artifacts. Paths and objects are opened beneath `roots` only.
  // All must outlive this.
  DatasetStore(v1::Models::StubInterface* models, HostCache* cache, const DatasetRoots* roots)
      : models_(models), cache_(cache), roots_(roots) {}

  // Keeps the last artifact's or object's dataset in memory. Errors name the URI.
  absl::StatusOr<std::shared_ptr<const Dataset>> Open(const v1::Dataset& dataset);

 private:
  class Download;
  absl::StatusOr<std::shared_ptr<const Dataset>> OpenArtifact(const std::string& name,
                                                              const v1::Dataset& dataset);
  absl::StatusOr<std::shared_ptr<const Dataset>> OpenObject(const v1::Dataset& dataset);
  // The dataset in memory if it has this key.
  std::shared_ptr<const Dataset> Last(const std::string& key);
  absl::StatusOr<std::shared_ptr<const Dataset>> ParseAndKeep(const std::string& key,
                                                              std::string content,
                                                              const std::string& file,
                                                              const v1::Dataset& dataset);

  v1::Models::StubInterface* const models_;
  HostCache* const cache_;
  const DatasetRoots* const roots_;

  absl::Mutex mutex_;
  std::string last_key_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Dataset> last_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
