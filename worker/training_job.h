// One attempt of a training job on one rank: programs, data, peers and checkpoints around
// executors. Knows nothing of gRPC.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/worker.pb.h"
#include "base/file_system.h"
#include "worker/collective/communicator.h"
#include "worker/data/batch_loader.h"
#include "worker/executor/executor.h"
#include "worker/worker_job.h"

namespace espalier {

struct TrainingJobOptions {
  Device* device = nullptr;
  FileSystem* files = nullptr;
  std::function<absl::StatusOr<std::shared_ptr<const Dataset>>(const v1::Dataset&)> open_dataset;
  // Meets the other ranks of the attempt; called from the first Run if there are any. `cancelled`
  // turns true when it should give up.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
      int rank, int size, const PeerTimeouts& timeouts, std::function<bool()> cancelled)>
      connect;
  // Loading is of no use any more, and ends with Cancelled before the next tensor of a checkpoint.
  // May be empty.
  std::function<bool()> cancelled;
};

class TrainingJob : public WorkerJob {
 public:
  // Loads programs and dataset, and the checkpoint where there is one, or else the model to start
  // from where there is one.
  static absl::StatusOr<std::unique_ptr<TrainingJob>> Load(const v1::LoadProgramRequest& request,
                                                           const TrainingJobOptions& options);

  int64_t training_examples() const;
  int64_t measured_peak_bytes() const;

  // Blocks. Hands every event to `emit`; an error of emit ends the run. Cancelled after Abort.
  absl::Status Run(const v1::RunRequest& request,
                   const std::function<absl::Status(const v1::RunEvent&)>& emit);

  // From any thread: ends Run soon, and every later one.
  void Abort(const std::string& reason) override;

  // Measured between ranks 0 and 1 when they first met; absent elsewhere.
  bool has_link() const;
  v1::Link link() const;

  std::unique_ptr<Communicator> TakeCommunicator() override;

 private:
  TrainingJob(const v1::LoadProgramRequest& request, const TrainingJobOptions& options);
  absl::Status LoadCheckpoint(const std::string& directory);
  // Sets `*met` if the ranks have met only now.
  absl::Status Connect(bool* met);
  absl::Status MeasureLink();
  // With all ranks; what rank 0 has to tell of it goes to `emit`.
  absl::Status ReportCommunication(const std::function<absl::Status(const v1::RunEvent&)>& emit);
  absl::Status WriteShard(const v1::RunRequest& request, int64_t steps_done,
                          const std::function<absl::Status(const v1::RunEvent&)>& emit);
  absl::Status Evaluate(const v1::RunRequest& request,
                        const std::function<absl::Status(const v1::RunEvent&)>& emit);
  absl::Status Cancelled();

  const TrainingJobOptions options_;
  const v1::Attempt attempt_;
  const absl::Duration peer_timeout_;
  const bool measure_communication_;
  // Of what the first Run goes on from, 0 without a checkpoint; -1: it has.
  int64_t steps_loaded_ = 0;
  std::unique_ptr<BatchLoader> training_data_;
  std::unique_ptr<BatchLoader> holdout_data_;
  std::unique_ptr<Executor> training_;
  std::unique_ptr<Executor> evaluation_;

  mutable absl::Mutex mutex_;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Communicator> communicator_ ABSL_GUARDED_BY(mutex_);
  bool has_link_ ABSL_GUARDED_BY(mutex_) = false;
  v1::Link link_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
