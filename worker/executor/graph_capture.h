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
class StepGraphCache {
 public:
  static constexpr int64_t kMaxRows = 128;  // of a step; longer ones hide their launches
  static constexpr size_t kMaxGraphs = 256;   // those used last

  explicit StepGraphCache(GraphCapturer* graph_capturer) : graph_capturer_(graph_capturer) {}
  ~StepGraphCache();
  StepGraphCache(const StepGraphCache&) = delete;
  StepGraphCache& operator=(const StepGraphCache&) = delete;

  // Runs `enqueue`, or what it enqueued in an earlier step of these sizes. An error of `enqueue` is
  // the answer, and forgets what was seen of these sizes.
  absl::Status Run(const DynamicSizes& sizes, const std::function<absl::Status()>& enqueue);

 private:
  struct Entry {
    uint64_t graph = 0;  // 0: none yet
    uint64_t used = 0;
  };
  using Sizes = std::pair<int64_t, int64_t>;

  absl::Status Capture(const Sizes& sizes, const std::function<absl::Status()>& enqueue);
  void EvictOldest();

  GraphCapturer* const graph_capturer_;
  uint64_t steps_ = 0;
  std::map<Sizes, Entry> entries_;
};

}  // namespace espalier
