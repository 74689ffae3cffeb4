// Worker processes started by the daemon, for use on one machine.
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
  int threads = 0;           // per worker; 0: an equal share of the cores
  int64_t memory_limit = 0;  // bytes per worker; 0: an equal share of one worker's default
  std::string swap_dir;      // per worker; empty: none
  std::vector<std::string> dataset_roots;  // see DatasetRoots
  std::string cache_dir;                   // for downloaded datasets
  std::string api_key_file;                // the daemon's own; empty: none
};

// Looks next to the running program and, in a build tree, in worker/. NotFound names both paths.
absl::StatusOr<std::string> FindWorkerProgram();

// Keeps `count` processes running and restarts one that exits, with backoff. They die with the
// daemon, however it ends.
class LocalWorkers {
 public:
  static absl::StatusOr<std::unique_ptr<LocalWorkers>> Start(const LocalWorkersOptions& options);
  ~LocalWorkers();

  // Asks the workers to leave; kills those still running after ten seconds. Idempotent.
  void Stop();

 private:
  struct Process {
    int pid = -1;
    absl::Time started;
    absl::Time start_at;
    absl::Duration backoff;
  };

  explicit LocalWorkers(const LocalWorkersOptions& options) : options_(options) {}
  void Loop();
  void Spawn(size_t index);

  const LocalWorkersOptions options_;
  std::vector<Process> processes_;  // used by the loop's thread only
  absl::Mutex mutex_;
  absl::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread loop_;
};

}  // namespace espalier
