// SHA-256 of the blocks of artifacts' files, by which workers know what they have cached.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "storage/object_reader.h"

namespace espalier {

inline constexpr int64_t kBlockBytes = 8 << 20;

// Thread-safe.
class BlockHashes {
 public:
  // The store, which must outlive it, never gives a name to other content.
  explicit BlockHashes(ObjectReader* store) : store_(*store) {}

  // Returns 32 bytes for each block. The first call for a file reads it; others wait meanwhile.
  absl::StatusOr<std::vector<std::string>> Of(const std::string& name);

 private:
  static constexpr size_t kMostFiles = 4096;  // remembered

  struct File {
    absl::Mutex mutex;
    bool known ABSL_GUARDED_BY(mutex) = false;
    std::vector<std::string> blocks ABSL_GUARDED_BY(mutex);
  };

  ObjectReader& store_;
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<File>> files_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
