// Captured step graphs (CUDA graphs). A serving program enqueues identical work for every step of
// the same sizes: hundreds of small kernels whose launches cost more than their work. The second
// step of a size is captured; later ones launch the graph.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "worker/device/device.h"
#include "worker/executor/executor.h"

namespace espalier {

// Not thread-safe: used on the device's thread.
class StepGraphCache {
 public:
  static constexpr int64_t kMaxRows = 128;   // longer steps hide their launch cost
  static constexpr size_t kMaxGraphs = 256;  // the least recently used is evicted

  explicit StepGraphCache(GraphCapturer* graph_capturer) : graph_capturer_(graph_capturer) {}
  ~StepGraphCache();
  StepGraphCache(const StepGraphCache&) = delete;
  StepGraphCache& operator=(const StepGraphCache&) = delete;

  // Runs `enqueue`, or launches the graph captured from it in an earlier step of these sizes.
  // Returns an error of `enqueue` and drops the entry of these sizes.
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
