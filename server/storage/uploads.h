// Uploads of workers to the checkpoint store. A stream that breaks does not end its upload: the
// next one goes on where it was.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/sha256.h"
#include "storage/checkpoint_store.h"

namespace espalier {

// Thread-safe.
class Uploads {
 public:
  // How long an upload without a stream is kept, and how long a finished one is remembered.
  static constexpr absl::Duration kKeep = absl::Minutes(1);
  static constexpr int kMost = 4096;

  // One stream of an upload. Not thread-safe. The upload goes on after its destruction.
  class Stream {
   public:
    int64_t received() const;
    // Bytes before received() are ignored. InvalidArgument for a gap; Aborted once the upload has
    // another stream. After an error of the store the upload is over.
    absl::Status Append(int64_t offset, const std::string& data);
    // Makes the object durable. DataLoss, naming the difference, if it is not of this size and
    // hash. The same again for an upload that has been committed is OK.
    absl::Status Commit(int64_t bytes, const std::string& sha256);

   private:
    friend class Uploads;
    Uploads* uploads_ = nullptr;
    std::string id_;
    uint64_t number_ = 0;
  };

  // Both must outlive it.
  Uploads(CheckpointStore* store, const Clock* clock) : store_(*store), clock_(*clock) {}

  // Begins the upload `id` of an object, or goes on with it. InvalidArgument if the id is of
  // another object; ResourceExhausted if there are too many uploads.
  absl::StatusOr<Stream> Begin(const std::string& name, const std::string& id);

  // Drops uploads that no stream has gone on with. Call now and then.
  void DropOld();

 private:
  struct Upload {
    std::string name;
    absl::Mutex mutex;  // held while the store works; never taken before uploads_'s
    std::unique_ptr<CheckpointStore::Upload> out ABSL_GUARDED_BY(mutex);  // null: over
    Sha256 hash ABSL_GUARDED_BY(mutex);
    int64_t received ABSL_GUARDED_BY(mutex) = 0;
    std::string sha256 ABSL_GUARDED_BY(mutex);   // of a committed object
    uint64_t stream ABSL_GUARDED_BY(mutex) = 0;  // the newest
    absl::Time used ABSL_GUARDED_BY(mutex);
  };
  std::shared_ptr<Upload> Find(const std::string& id);

  CheckpointStore& store_;
  const Clock& clock_;
  absl::Mutex mutex_;
  uint64_t next_stream_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, std::shared_ptr<Upload>> uploads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
