// The examples that a client has pushed for a job whose dataset is a STREAM: by step, as .npz files
// in a folder that the job's workers read.
//
// <folder>/<first step>-<end step>.npz, numbers of 12 digits   <folder>/end: no more follow
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file_system.h"

namespace espalier {

inline constexpr int64_t kDefaultBacklog = 64;

struct ExampleStreamOptions {
  FileSystem* files = nullptr;   // must outlive the stream
  const Clock* clock = nullptr;  // the same
  std::string folder;            // made by the first push
  int64_t backlog = kDefaultBacklog;
  int64_t max_steps = 0;  // batches that the job trains on at most
};

// Batches of a call, in the order in which they are trained.
struct PushedBatches {
  int64_t first_step = 0;
  int64_t steps = 0;  // batches; 0: none
  std::string npz;    // with steps * batch size examples
  bool end = false;   // no more follow
};

// Thread-safe.
class ExampleStream {
 public:
  struct Part {
    int64_t first = 0, end = 0;  // steps [first, end)
    std::string path;
  };

  // Reads what the folder has.
  explicit ExampleStream(ExampleStreamOptions options);

  // DataLoss naming the steps if the examples of some are gone; then nothing can be pushed. Does
  // not change.
  const absl::Status& status() const { return status_; }

  // Returns true once the batches are durable, or if they are already; false if there was no room
  // for them in the backlog within `wait`. Errors as of Training.PushExamples; after one, nothing
  // has changed.
  absl::StatusOr<bool> Push(const PushedBatches& batches, absl::Duration wait);

  // Steps that the job has done, which need no room any more; fewer after it went back.
  void SetStepsDone(int64_t steps);

  int64_t steps_pushed() const;
  bool ended() const;
  // Returns the parts with the examples of steps from `step` on.
  std::vector<Part> PartsFrom(int64_t step) const;
  // How long nobody has pushed anything; at most since `begin`.
  absl::Duration SilentSince(absl::Time begin) const;
  absl::Time Now() const { return options_.clock->Now(); }

  // Removes all examples. Later pushes are refused.
  void Remove();

 private:
  absl::Status Load();
  std::string PathOf(int64_t first, int64_t end) const;
  // Returns OkStatus if the batches are those of an earlier push.
  absl::Status CheckRepeats(const PushedBatches& batches) const;
  absl::Status Write(const PushedBatches& batches, bool examples) const;
  bool HasRoom(int64_t steps) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return pushed_ - done_ + steps <= options_.backlog;
  }

  const ExampleStreamOptions options_;
  absl::Status status_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // a call writes files, without the mutex
  bool removed_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t pushed_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Part> parts_ ABSL_GUARDED_BY(mutex_);  // in the order of steps
  absl::Time last_push_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace espalier
