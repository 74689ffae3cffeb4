// Reads what a rank answers ahead of whoever wants it. Where steps overlap, the next one is written
// to a rank that may be writing the answer to the one before: if nobody read that, both would wait.
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
  // Nobody else reads the stream, which outlives the reader. What is kept is what begun steps give.
  explicit ResultPrefetcher(ServingStream* stream);
  // The stream is broken, or its client was cancelled: otherwise this waits.
  ~ResultPrefetcher();

  // The next one; blocks. False once the stream is broken and all that came has been read.
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
