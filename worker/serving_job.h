// One rank of a served model: its program with weights and KV cache, and its peers. Knows nothing
// of gRPC.
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
#include "base/file_system.h"
#include "worker/device/device.h"
#include "worker/device/device_thread.h"
#include "worker/runner/program_model_runner.h"
#include "worker/worker_job.h"

namespace espalier {

struct ServingJobOptions {
  // Both outlive the job. Other jobs may have the device in between steps of this one, and while
  // this one loads.
  Device* device = nullptr;
  DeviceThread* device_thread = nullptr;
  FileSystem* files = nullptr;  // where models lie
  // Meets the other ranks, if there are any. `cancelled` turns true when it should give up.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
      int rank, int size, const PeerTimeouts& timeouts, std::function<bool()> cancelled)>
      connect;
  std::function<bool()> cancelled;  // loading is of no use any more, and ends with Cancelled
};

class ServingJob : public WorkerJob {
 public:
  // Reads this rank's parts of the weights, then meets its peers: on the calling thread, which has
  // the device in short turns, if it needs it at all.
  static absl::StatusOr<std::unique_ptr<ServingJob>> Load(const v1::StartServingRequest& request,
                                                          const ServingJobOptions& options);

  int64_t measured_peak_bytes() const;
  bool has_logits() const { return runner_->has_logits(); }

  // What is refused before anything is touched, by all ranks alike.
  absl::Status Check(const RunnerBatch& batch) const { return runner_->Check(batch); }
  // One step, which all ranks run, of a batch that Check has let pass; logits on the rank that has
  // them. After an error the job is of no more use. Waits for steps of other jobs on the device.
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
