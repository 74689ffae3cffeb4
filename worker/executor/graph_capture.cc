#include "worker/executor/graph_capture.h"

#include <algorithm>

namespace espalier {

StepGraphCache::~StepGraphCache() {
  for (const auto& [sizes, seen] : entries_) {
    if (seen.graph != 0) graph_capturer_->Destroy(seen.graph);
  }
}

absl::Status StepGraphCache::Run(const DynamicSizes& sizes,
                                 const std::function<absl::Status()>& enqueue) {
  if (sizes.rows > kMaxRows) return enqueue();
  const Sizes key(sizes.rows, sizes.output_rows);
  const auto found = entries_.find(key);
  if (found != entries_.end()) {
    found->second.used = ++steps_;
    if (found->second.graph != 0) return graph_capturer_->Launch(found->second.graph);
    return Capture(key, enqueue);
  }
  // On the first run libraries load and initialize, which cannot be captured.
  if (absl::Status s = enqueue(); !s.ok()) return s;
  if (entries_.size() >= kMaxGraphs) EvictOldest();
  entries_[key].used = ++steps_;
  return absl::OkStatus();
}

absl::Status StepGraphCache::Capture(const Sizes& sizes,
                                     const std::function<absl::Status()>& enqueue) {
  absl::Status status = graph_capturer_->BeginCapture();
  if (!status.ok()) return status;
  status = enqueue();
  const absl::StatusOr<uint64_t> graph = graph_capturer_->EndCapture();
  if (!status.ok() || !graph.ok()) {
    entries_.erase(sizes);
    if (graph.ok()) graph_capturer_->Destroy(*graph);
    return status.ok() ? graph.status() : status;
  }
  entries_[sizes].graph = *graph;
  return graph_capturer_->Launch(*graph);
}

void StepGraphCache::EvictOldest() {
  const auto oldest =
      std::min_element(entries_.begin(), entries_.end(),
                       [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
  if (oldest->second.graph != 0) graph_capturer_->Destroy(oldest->second.graph);
  entries_.erase(oldest);
}

}  // namespace espalier
