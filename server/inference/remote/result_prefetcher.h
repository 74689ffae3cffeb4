// Reads a rank's step results on a thread, ahead of the consumer. With concurrent steps, the
// coordinator writes the next step while the rank may be writing the previous result; if neither
// reads, both block.
#pragma once

#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/worker.pb.h"
#include "server/jobs/worker_client.h"

namespace espalier {

class ResultPrefetcher {
 public:
  // `stream` must have no other reader and must outlive this object. Buffers at most the results of
  // open steps.
  explicit ResultPrefetcher(ServingStream* stream);
  // REQUIRES: the stream is broken or cancelled; otherwise this blocks.
  ~ResultPrefetcher();

  // Blocks for the next result. Returns false once the stream is broken and all results are read.
  bool Read(v1::ServingResult* result);

 private:
  void Run();
  bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_ || !results_.empty(); }

  ServingStream* const stream_;
  absl::Mutex mutex_;
  std::deque<v1::ServingResult> results_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace espalier
