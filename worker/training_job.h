// One rank of an attempt of a training job: executors with their data, peers and checkpoints.
// Independent of gRPC.
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
#include "worker/collective/communicator.h"
#include "worker/data/batch_loader.h"
#include "worker/data/stream_source.h"
#include "worker/executor/executor.h"
#include "worker/job_peers.h"
#include "worker/storage/job_storage.h"
#include "worker/trainer/checkpoint_observer.h"
#include "worker/trainer/probe_reader.h"
#include "worker/trainer/shard_writer.h"
#include "worker/trainer/timing_observer.h"
#include "worker/worker_job.h"

namespace espalier {

struct TrainingJobOptions {
  Device* device = nullptr;
  std::shared_ptr<JobStorage> storage;
  std::function<absl::StatusOr<std::shared_ptr<const Dataset>>(const v1::Dataset&)> open_dataset;
  // Connects to the other ranks, if any; called by the first Run. Gives up when `cancelled` returns
  // true.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
      int rank, int size, const PeerTimeouts& timeouts, std::function<bool()> cancelled)>
      connect;
  // Optional. If it returns true, loading ends with Cancelled before the next tensor of a
  // checkpoint.
  std::function<bool()> cancelled;
};

class TrainingJob : public WorkerJob {
 public:
  // Loads programs and datasets, then the checkpoint, if any, or else the initial model, if any.
  static absl::StatusOr<std::unique_ptr<TrainingJob>> Load(const v1::LoadProgramRequest& request,
                                                           const TrainingJobOptions& options);

  int64_t training_examples() const { return training_examples_; }  // 0: of a STREAM
  int64_t measured_peak_bytes() const;
  const v1::ShardSources& shards_read() const { return shards_read_; }  // by Load

  // Runs steps, from a checkpoint if the request names one, and passes every event to `emit`, whose
  // error ends the run. Blocks. Returns Cancelled after Abort, DataLoss if the values are not those
  // before the first step. Where a run ends changes no step's result. None may follow one that
  // failed.
  absl::Status Run(const v1::RunRequest& request,
                   const std::function<absl::Status(const v1::RunEvent&)>& emit);

  // Asks for one more shard, after so many steps, unless they are done already. Returns the steps
  // done. Thread-safe.
  int64_t CheckpointAt(int64_t steps_done) { return requested_checkpoints_.Add(steps_done); }

  // Ends Run soon, and every later one at once. Thread-safe.
  void Abort(const std::string& reason) override;

  // Measured between ranks 0 and 1 when they first connect; absent on other ranks.
  bool has_link() const;
  v1::Link link() const;

  std::unique_ptr<Communicator> TakeCommunicator() override;

 private:
  TrainingJob(const v1::LoadProgramRequest& request, const TrainingJobOptions& options);
  // Makes training_data_. Returns the dataset; null: it is a STREAM.
  absl::StatusOr<std::shared_ptr<const Dataset>> OpenTrainingData(
      const v1::LoadProgramRequest& request, const BatchLoaderOptions& data);
  // Makes probes_ and evaluation_probes_.
  absl::Status MakeProbes(const v1::LoadProgramRequest& request);
  // If it cannot be read with copies of shards, reads the checkpoint store alone.
  absl::Status LoadCheckpoint(const std::string& directory);
  absl::Status ReadCheckpoint(const std::string& directory);
  // For a Run that begins with a checkpoint, whatever steps were run before.
  absl::Status RestoreCheckpoint(const v1::RunRequest& request);
  // Sets `*met` if this call connected the ranks.
  absl::Status Connect(bool* met);
  // Runs the request's steps with their observers; `met` if the ranks have just connected.
  absl::Status Train(const v1::RunRequest& request, bool met,
                     const std::function<absl::Status(const v1::RunEvent&)>& emit);
  void SetLink(const v1::Link& link);

  const TrainingJobOptions options_;
  const v1::Attempt attempt_;
  const absl::Duration peer_timeout_;
  const bool measure_communication_;
  // Steps done at the loaded checkpoint, 0 without one; -1 after a Run since.
  int64_t steps_loaded_ = 0;
  int64_t training_examples_ = 0;
  v1::ShardSources shards_read_;
  std::unique_ptr<BatchSource> training_data_;
  StreamSource* stream_ = nullptr;  // training_data_, of a STREAM
  std::unique_ptr<BatchLoader> holdout_data_;
  std::unique_ptr<Executor> training_;
  std::unique_ptr<Executor> evaluation_;
  std::unique_ptr<ProbeReader> probes_, evaluation_probes_;  // of the two; null: none
  std::unique_ptr<ShardWriter> shard_writer_;                // of training_
  TimingObserver timing_;                                    // of all runs together
  RequestedCheckpoints requested_checkpoints_;

  JobPeers peers_;
  mutable absl::Mutex mutex_;
  bool has_link_ ABSL_GUARDED_BY(mutex_) = false;
  v1::Link link_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
