// Writes a rank's shards of checkpoints. ShardWriter does it beside the training: at a step border
// the values are copied to host memory, and a thread of low priority writes, hashes and syncs them.
#pragma once

#include <atomic>
#include <cstddef>
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

// Writes this rank's shard of the checkpoint in `directory`, with all values, durably, while the
// caller waits. A full disk is no error: the shard then says that it was not written. Errors name
// the number of steps done.
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
// Values that the program does not change are written with the first shard, to a file that later
// ones name, too (WriteUnchangedShard). For that, all shards of a writer are of the same attempt,
// and nobody else writes parameters of the executor once the first shard was begun.
//
// What the host memory has no room for is not copied beforehand: then Begin returns only when that
// part is in the file, and a message in the log says so.
class ShardWriter {
 public:
  explicit ShardWriter(const ShardWriterOptions& options);
  ~ShardWriter();  // as Abandon

  // Takes the host memory and starts the thread, which touches that memory, so that the first shard
  // costs no more than later ones. Begin does it otherwise. Nothing happens after the first time.
  void Prepare();
  // Copies the values and starts to write them. REQUIRES: not `busy`.
  absl::Status Begin(const std::string& directory, int64_t steps_done);
  // Whether a shard was begun whose result has not been taken.
  bool busy() const { return busy_; }
  // Whether it has begun a shard, and shards name a file of unchanged values.
  bool has_shared() const { return steps_done_ >= 0 && !unchanged_.entries.empty(); }
  // Of the shard that was begun last; -1: none was.
  int64_t steps_done() const { return steps_done_; }
  // Whether Take would not wait.
  bool finished() const { return finished_; }
  // Waits until the shard is durable. Returns what WriteShardOf returns, and what it has cost.
  // REQUIRES: busy.
  absl::StatusOr<v1::CheckpointShard> Take();
  // Drops the shard that is being written, if any: soon, but for a call of the store that does not
  // return.
  void Abandon();

 private:
  class Values;

  // Values that are written to one file.
  struct Entries {
    std::vector<CheckpointEntry> entries;
    std::vector<int> buffers;
    std::vector<char*> places;  // in host memory, of copies of the values; null: none
  };
  struct Shard {
    std::string directory;
    int64_t steps_done = 0;
  };

  // Takes memory for copies of the last entries, which are the last to be written, within `*room`
  // bytes. Null: for none.
  std::unique_ptr<HostMemory> TakeHostMemory(Entries* entries, int64_t* room) const;
  absl::Status Copy(const Entries& entries);
  // Gives the thread the values that are not in host memory, one after the other.
  void Serve() ABSL_LOCKS_EXCLUDED(mutex_);

  // The thread's.
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<v1::CheckpointShard> Write(const Shard& shard) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until Serve has copied the values of a buffer.
  absl::Status AwaitValues(int buffer, std::vector<char>* bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void AwaitResult() ABSL_LOCKS_EXCLUDED(mutex_);

  const ShardWriterOptions options_;
  // The thread reads them, while a shard is being written.
  Entries changing_, unchanged_;
  std::unique_ptr<HostMemory> staging_;         // of changing_
  std::unique_ptr<HostMemory> staging_once_;    // of unchanged_, for the first shard
  std::optional<ManifestFile> unchanged_file_;  // once that is durable; set by the thread

  bool busy_ = false;
  int64_t steps_done_ = -1;
  absl::Duration stall_;  // of the present shard
  std::atomic<bool> finished_{false};
  std::atomic<bool> abandoned_{false};

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Shard> next_ ABSL_GUARDED_BY(mutex_);  // that the thread is to write
  // Of the present shard; absent: it is not written yet.
  std::optional<absl::StatusOr<v1::CheckpointShard>> result_ ABSL_GUARDED_BY(mutex_);
  // Values that the thread still needs and that are not in host memory.
  int64_t to_serve_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<int> wanted_ ABSL_GUARDED_BY(mutex_);  // buffer that the thread waits for
  std::vector<char>* wanted_bytes_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Status served_ ABSL_GUARDED_BY(mutex_);  // what came of it

  std::thread thread_;  // from Prepare on
};

}  // namespace espalier
