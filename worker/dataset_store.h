// Opens datasets by URI: files of this host, or artifacts downloaded from the coordinator and kept
// in a cache.
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
#include "worker/dataset_cache.h"

namespace espalier {

// Thread-safe.
class DatasetStore {
 public:
  // With a null `models` only paths work. Paths are opened beneath `roots` only. All must outlive
  // this.
  DatasetStore(v1::Models::StubInterface* models, DatasetCache* cache, const DatasetRoots* roots)
      : models_(models), cache_(cache), roots_(roots) {}

  // Keeps the last artifact's dataset in memory. Errors name the URI.
  absl::StatusOr<std::shared_ptr<const Dataset>> Open(const v1::Dataset& dataset);

 private:
  class Download;
  absl::StatusOr<std::shared_ptr<const Dataset>> OpenArtifact(const std::string& name,
                                                              const v1::Dataset& dataset);

  v1::Models::StubInterface* const models_;
  DatasetCache* const cache_;
  const DatasetRoots* const roots_;

  absl::Mutex mutex_;
  std::string last_key_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Dataset> last_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
