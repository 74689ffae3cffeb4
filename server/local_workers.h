// Worker processes that the daemon starts itself: one machine, one command.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace espalier {

struct LocalWorkersOptions {
  int count = 0;
  std::string program;       // path of espalier-worker
  std::string coordinator;   // host:port that they join
  int threads = 0;           // of each; 0: the machine's cores divided among them
  int64_t memory_limit = 0;  // of each, bytes; 0: what one would take divided among them
  std::string swap_dir;      // of each; empty: none
  std::string api_key_file;  // the daemon's own; empty: none
};

// Looks beside the running program and, in a build tree, in worker/. NotFound names both places.
absl::StatusOr<std::string> FindWorkerProgram();

// Keeps `count` processes alive: one that ends is started again, more slowly if it keeps ending.
// They die with the daemon, however that ends.
class LocalWorkers {
 public:
  static absl::StatusOr<std::unique_ptr<LocalWorkers>> Start(const LocalWorkersOptions& options);
  ~LocalWorkers();

  // Asks them to leave, and ends those that have not after ten seconds. Idempotent.
  void Stop();

 private:
  struct Process {
    int pid = -1;
    absl::Time started;
    absl::Time start_at;
    absl::Duration pause;
  };

  explicit LocalWorkers(const LocalWorkersOptions& options) : options_(options) {}
  void Loop();
  void Spawn(size_t index);

  const LocalWorkersOptions options_;
  std::vector<Process> processes_;  // of the loop's thread
  absl::Mutex mutex_;
  absl::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread loop_;
};

}  // namespace espalier
