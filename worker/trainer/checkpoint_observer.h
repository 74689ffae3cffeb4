// Writes a rank's shard of a checkpoint every few steps, and before the first and after the last
// one as asked for.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/worker.pb.h"
#include "storage/checkpoint_store.h"
#include "worker/executor/executor.h"
#include "worker/trainer/step_observer.h"

namespace espalier {

// True for buffers that checkpoints hold: parameters and optimizer state.
bool IsCheckpointed(const Executor& executor, int buffer);

// Writes this rank's shard of the checkpoint in `directory`, durably. A full disk is no error: the
// shard then says that it was not written. Errors name the number of steps done.
absl::StatusOr<v1::CheckpointShard> WriteShardOf(CheckpointStore& store, Executor& executor,
                                                 const std::string& directory, int64_t steps_done);

// Checkpoints that are asked for while steps run. Thread-safe.
class RequestedCheckpoints {
 public:
  // Asks for one after so many steps, unless they are done already. Returns the steps done.
  int64_t Add(int64_t steps_done);
  // Tells that so many steps are done. Returns whether a checkpoint was asked for after them.
  bool Take(int64_t steps_done);

 private:
  absl::Mutex mutex_;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<int64_t> wanted_ ABSL_GUARDED_BY(mutex_);  // all are greater than done_
};

struct CheckpointOptions {
  CheckpointStore* store = nullptr;  // outlives the observer
  Executor* executor = nullptr;      // outlives the observer
  std::string root;                  // empty: no checkpoints
  int64_t every_steps = 0;           // 0: none between
  uint64_t attempt = 0;
  bool at_begin = false;                      // also before the first step
  bool at_end = true;                         // also after the last step, whatever its number
  RequestedCheckpoints* requested = nullptr;  // outlives the observer; null: none
};

class CheckpointObserver : public StepObserver {
 public:
  explicit CheckpointObserver(CheckpointOptions options);

  absl::string_view name() const override { return "checkpoint"; }
  absl::Status OnRunBegin(TrainingRun& run) override;
  // Emits the shard once it is durable. A full disk does not end the run: the event says that the
  // shard was not written. Errors name the number of steps done.
  absl::Status OnStepReported(TrainingRun& run, int64_t step, const StepReports& reports) override;

 private:
  absl::Status WriteShard(TrainingRun& run, int64_t steps_done);

  const CheckpointOptions options_;
};

}  // namespace espalier
