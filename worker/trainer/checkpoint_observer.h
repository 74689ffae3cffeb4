// Writes a rank's shard of a checkpoint every few steps, and before the first and after the last
// one as asked for, while later steps run.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "worker/trainer/shard_writer.h"
#include "worker/trainer/step_observer.h"

namespace espalier {

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
  ShardWriter* writer = nullptr;  // outlives the observer
  std::string root;               // empty: no checkpoints
  int64_t every_steps = 0;        // 0: none between
  uint64_t attempt = 0;
  bool at_begin = false;  // also before the first step
  // Whether another run with the same writer follows, which emits a shard that is not durable yet
  // at the end of this one. If not, one is written after the last step, too, and the run waits for
  // it.
  bool goes_on = false;
  RequestedCheckpoints* requested = nullptr;  // outlives the observer; null: none
};

// All ranks write the same checkpoints, so none is left out because the one before is not durable
// yet: then the training waits for that. So does the end of the last run. If a run fails, what is
// being written is dropped.
class CheckpointObserver : public StepObserver {
 public:
  explicit CheckpointObserver(CheckpointOptions options);

  absl::string_view name() const override { return "checkpoint"; }
  absl::Status OnRunBegin(TrainingRun& run) override;
  // Emits a shard at the first step border at which it is durable. A full disk does not end the
  // run: the event says that the shard was not written. Errors name the number of steps done.
  absl::Status OnStepReported(TrainingRun& run, int64_t step, const StepReports& reports) override;
  absl::Status OnEvaluation(TrainingRun& run, const v1::StepReport& evaluation) override;
  absl::Status OnRunEnd(TrainingRun& run) override;
  void OnRunFailed(TrainingRun& run, const absl::Status& status) override;

 private:
  // Begins none if one of as many steps is being written: an earlier run has begun it.
  absl::Status BeginShard(TrainingRun& run, int64_t steps_done);
  // Emits the shard that was written, if any, without waiting.
  absl::Status EmitFinished(TrainingRun& run);
  // Waits for the shard that is being written, if any, and emits it.
  absl::Status EmitShard(TrainingRun& run);

  const CheckpointOptions options_;
};

}  // namespace espalier
