// Uploads of workers to the checkpoint store. A stream that breaks does not end its upload: the
// next one goes on where it was.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

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
  struct Upload;

 public:
  // How long an upload without a stream is kept, and how long a finished one is remembered.
  static constexpr absl::Duration kKeep = absl::Minutes(1);
  static constexpr int kMost = 4096;

  // One stream of an upload. Not thread-safe. The upload goes on after its destruction.
  class Stream {
   public:
    Stream(Stream&&) = default;
    Stream& operator=(Stream&&) = delete;
    ~Stream();
    int64_t received() const;
    // Bytes before received() are ignored. InvalidArgument for a gap; Aborted once the upload has
    // another stream. After an error of the store the upload is over, with that error.
    absl::Status Append(int64_t offset, const std::string& data);
    // Makes the object durable. DataLoss, naming the difference, if it is not of this size and
    // hash. The same again for an upload that has been committed is OK.
    absl::Status Commit(int64_t bytes, const std::string& sha256);

   private:
    friend class Uploads;
    Stream(const Clock* clock, std::shared_ptr<Upload> upload, uint64_t number)
        : clock_(clock), upload_(std::move(upload)), number_(number) {}

    const Clock* clock_;
    std::shared_ptr<Upload> upload_;  // null once it was moved from
    uint64_t number_;
  };

  // Both must outlive it.
  Uploads(CheckpointStore* store, const Clock* clock) : store_(*store), clock_(*clock) {}

  // Begins the upload `id` of an object, or goes on with it. InvalidArgument if the id is of
  // another object; ResourceExhausted if there are too many uploads.
  absl::StatusOr<Stream> Begin(const std::string& name, const std::string& id);

  // Drops uploads that no stream goes on with. Call now and then.
  void DropOld();

 private:
  struct Upload {
    std::string name;
    std::atomic<int> streams = 0;  // not dropped meanwhile; becomes 1 under uploads_'s mutex only
    // Held while the store works. Under uploads_'s mutex it is only tried.
    absl::Mutex mutex;
    std::unique_ptr<CheckpointStore::Upload> out ABSL_GUARDED_BY(mutex);  // null: over
    absl::Status over ABSL_GUARDED_BY(mutex);                             // why, unless committed
    Sha256 hash ABSL_GUARDED_BY(mutex);
    int64_t received ABSL_GUARDED_BY(mutex) = 0;
    std::string sha256 ABSL_GUARDED_BY(mutex);   // of a committed object
    uint64_t stream ABSL_GUARDED_BY(mutex) = 0;  // the newest
    absl::Time used ABSL_GUARDED_BY(mutex);      // when the last stream ended

    // Ends it. What the worker has sent is lost, so it cannot go on even if the store can.
    void End(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  };

  CheckpointStore& store_;
  const Clock& clock_;
  absl::Mutex mutex_;
  uint64_t next_stream_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, std::shared_ptr<Upload>> uploads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
