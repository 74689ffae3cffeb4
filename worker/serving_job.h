// One rank of a served model: its program, weights, KV cache and peers. Independent of gRPC.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "espalier/v1/worker.pb.h"
#include "serving/runner/model_runner.h"
#include "worker/device/device.h"
#include "worker/device/device_thread.h"
#include "worker/runner/program_model_runner.h"
#include "worker/storage/job_storage.h"
#include "worker/worker_job.h"

namespace espalier {

struct ServingJobOptions {
  // Both must outlive the job. Other jobs may use the device between steps and while this one
  // loads.
  Device* device = nullptr;
  DeviceThread* device_thread = nullptr;
  std::shared_ptr<JobStorage> storage;  // holds the models
  // Connects to the other ranks, if any. Gives up when `cancelled` returns true.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
      int rank, int size, const PeerTimeouts& timeouts, std::function<bool()> cancelled)>
      connect;
  std::function<bool()> cancelled;  // true: loading ends with Cancelled
};

class ServingJob : public WorkerJob {
 public:
  // Reads this rank's weights, then connects to its peers. Runs on the calling thread and uses the
  // device in short turns.
  static absl::StatusOr<std::unique_ptr<ServingJob>> Load(const v1::StartServingRequest& request,
                                                          const ServingJobOptions& options);

  int64_t measured_peak_bytes() const;
  bool has_logits() const { return runner_->has_logits(); }

  // Returns the errors that every rank reports before a step changes anything.
  absl::Status Check(const RunnerBatch& batch) const { return runner_->Check(batch); }
  // Runs one step of a batch that passed Check; all ranks must run it. Sets logits on the rank that
  // has them. Waits for steps of other jobs on the device. The job is unusable after an error.
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits);

  void Abort(const std::string& reason) override;
  std::unique_ptr<Communicator> TakeCommunicator() override;

 private:
  explicit ServingJob(DeviceThread* device_thread) : device_thread_(device_thread) {}
  absl::Status Cancelled();

  DeviceThread* const device_thread_;
  std::unique_ptr<ProgramModelRunner> runner_;
  absl::Mutex mutex_;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Communicator> communicator_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
