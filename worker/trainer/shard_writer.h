// Writes a rank's shards of checkpoints. ShardWriter does it beside the training: at a step border
// the values are copied to host memory, and a thread of low priority writes, hashes and syncs them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "espalier/v1/worker.pb.h"
#include "storage/checkpoint.h"
#include "storage/checkpoint_store.h"
#include "worker/device/device.h"
#include "worker/executor/executor.h"

namespace espalier {

// True for buffers that checkpoints hold: parameters and optimizer state.
bool IsCheckpointed(const Executor& executor, int buffer);

// Writes this rank's shard of the checkpoint in `directory`, durably, while the caller waits. A
// full disk is no error: the shard then says that it was not written. Errors name the number of
// steps done.
absl::StatusOr<v1::CheckpointShard> WriteShardOf(CheckpointStore& store, Executor& executor,
                                                 const std::string& directory, int64_t steps_done);

struct ShardWriterOptions {
  CheckpointStore* store = nullptr;  // outlives the writer
  Executor* executor = nullptr;      // outlives the writer
  Device* device = nullptr;          // the executor's; outlives the writer
  // Host memory for a copy of the values; less than zero: a quarter of what the host has available.
  int64_t most_host_bytes = -1;
};

// One shard at a time. Used by the thread that uses the executor, except `finished`.
//
// The first Begin takes the host memory, for all shards. What it has no room for is not copied
// beforehand: then Begin returns only when that part is in the file, and a message in the log says
// so.
class ShardWriter {
 public:
  explicit ShardWriter(const ShardWriterOptions& options);
  ~ShardWriter();  // as Abandon

  // Copies the values and starts to write them. REQUIRES: not `busy`.
  absl::Status Begin(const std::string& directory, int64_t steps_done);
  // Whether a shard was begun whose result has not been taken.
  bool busy() const { return thread_.joinable(); }
  // Whether Take would not wait.
  bool finished() const { return finished_; }
  // Waits until the shard is durable. Returns what WriteShardOf returns, and what it has cost.
  // REQUIRES: busy.
  absl::StatusOr<v1::CheckpointShard> Take();
  // Drops the shard that is being written, if any: soon, but for a call of the store that does not
  // return.
  void Abandon();

 private:
  class StagedValues;

  void TakeHostMemory();
  // Gives the writing thread the values that are not in the host memory, one after the other.
  void Serve() ABSL_LOCKS_EXCLUDED(mutex_);
  void Write(const std::string& directory, int64_t steps_done) ABSL_LOCKS_EXCLUDED(mutex_);
  // For the writing thread: waits until Serve has copied the values of an entry.
  absl::Status AwaitValues(int entry, std::vector<char>* bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const ShardWriterOptions options_;
  std::vector<CheckpointEntry> entries_;
  std::vector<int> buffers_;             // of the entries
  std::unique_ptr<HostMemory> staging_;  // null: none, or not yet taken
  std::vector<int64_t> places_;          // of entries in staging_
  size_t first_staged_ = 0;              // entries before it are not in staging_
  bool has_taken_memory_ = false;

  std::thread thread_;
  std::atomic<bool> finished_{false};
  std::atomic<bool> abandoned_{false};
  absl::Duration stall_;                                                // of the present shard
  absl::StatusOr<v1::CheckpointShard> result_ = v1::CheckpointShard();  // once the thread is over

  absl::Mutex mutex_;
  std::optional<int> wanted_ ABSL_GUARDED_BY(mutex_);  // entry that the thread waits for
  std::vector<char>* wanted_bytes_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Status served_ ABSL_GUARDED_BY(mutex_);  // what came of it
  // The thread needs nothing that is not in staging_ any more.
  bool all_served_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace espalier
