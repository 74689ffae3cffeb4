// Steps that enqueue the same work whenever they have the same sizes, as those of a program that
// serves: hundreds of small launches, which cost more than what they start. The second step of a
// size is recorded, and those after it are enqueued whole.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "worker/device/device.h"
#include "worker/executor/executor.h"

namespace espalier {

// Used by the device's thread.
class StepRecordings {
 public:
  static constexpr int64_t kMostRows = 128;  // of a step; longer ones hide their launches
  static constexpr size_t kMostKept = 256;   // those used last

  explicit StepRecordings(WorkRecorder* recorder) : recorder_(recorder) {}
  ~StepRecordings();
  StepRecordings(const StepRecordings&) = delete;
  StepRecordings& operator=(const StepRecordings&) = delete;

  // Runs `enqueue`, or what it enqueued in an earlier step of these sizes. An error of `enqueue` is
  // the answer, and forgets what was seen of these sizes.
  absl::Status Run(const DynamicSizes& sizes, const std::function<absl::Status()>& enqueue);

 private:
  struct Seen {
    uint64_t recording = 0;  // 0: none yet
    uint64_t used = 0;
  };
  using Sizes = std::pair<int64_t, int64_t>;

  absl::Status Record(const Sizes& sizes, const std::function<absl::Status()>& enqueue);
  void DropOldest();

  WorkRecorder* const recorder_;
  uint64_t steps_ = 0;
  std::map<Sizes, Seen> seen_;
};

}  // namespace espalier
