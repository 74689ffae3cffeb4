// The Worker service (proto/espalier/v1/worker.proto): one job that trains, or any number of served models,
// whose steps take turns; attempts and leases checked. Who gives a worker several models sees to it
// that they fit its memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/worker.grpc.pb.h"
#include "worker/device/device_thread.h"
#include "worker/serving_job.h"
#include "worker/training_job.h"

namespace espalier {

struct WorkerServiceOptions {
  Device* device = nullptr;
  FileSystem* files = nullptr;
  std::function<absl::StatusOr<std::shared_ptr<const Dataset>>(const v1::Dataset&)> open_dataset;
  // As TrainingJobOptions::connect, for an attempt.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
      const v1::Attempt& attempt, int rank, int size, const PeerTimeouts& timeouts,
      std::function<bool()> cancelled)>
      connect;
  // Decides on the value of a call's "authorization" metadata, before every RPC. Null: all may
  // call.
  std::function<absl::Status(const std::string& authorization)> authorize;
};

class WorkerService : public v1::Worker::Service {
 public:
  explicit WorkerService(WorkerServiceOptions options) : options_(std::move(options)) {}
  ~WorkerService() override;

  // The lease's epoch, after every Join; calls that carry another one are refused.
  void SetEpoch(uint64_t epoch);
  // Ends and forgets whatever is running or loaded, and waits for it.
  void AbortAll(const std::string& reason);

  std::vector<std::string> running_jobs() const;
  // The last link measured between two ranks of a job, if any since the last call.
  bool TakeLink(v1::Link* link);

  grpc::Status LoadProgram(grpc::ServerContext* context, const v1::LoadProgramRequest* request,
                           v1::LoadProgramReply* reply) override;
  grpc::Status Run(grpc::ServerContext* context, const v1::RunRequest* request,
                   grpc::ServerWriter<v1::RunEvent>* writer) override;
  grpc::Status StartServing(grpc::ServerContext* context, const v1::StartServingRequest* request,
                            v1::StartServingReply* reply) override;
  grpc::Status ServingSteps(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::ServingResult, v1::ServingStep>* stream) override;
  grpc::Status Stop(grpc::ServerContext* context, const v1::StopRequest* request,
                    v1::StopReply* reply) override;
  grpc::Status Measure(grpc::ServerContext* context, const v1::MeasureRequest* request,
                       v1::MeasureReply* reply) override;

 private:
  // What a job does here.
  enum class State { kLoading, kIdle, kRunning };
  // One that this worker has been given. It is idle, or somebody's who loads or runs it and alone
  // may take it away.
  struct LoadedJob {
    uint64_t attempt = 0;
    bool serves = false;  // with others that do; one that trains is alone
    State state = State::kLoading;
    bool abort_load = false;
    bool finished = false;  // a Run has ended
    // Once it is loaded, one of the two.
    std::shared_ptr<TrainingJob> training;
    std::shared_ptr<ServingJob> serving;
    // Of the stream of steps that is open: it may wait for the next step.
    grpc::ServerContext* steps = nullptr;
  };

  absl::Status Authorize(const grpc::ServerContext& context) const;
  absl::Status CheckAttempt(const v1::Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The job's, or null.
  LoadedJob* Find(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // FailedPrecondition if a loaded that is no neighbour for this attempt loads or runs. What an
  // older attempt of the same job does is aborted.
  absl::Status CheckFree(const v1::Attempt& attempt, bool serves)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until the job neither loads nor runs, and nothing is measured or freed; false after
  // `timeout`.
  bool WaitIdle(const std::string& job_id, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Idle(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Abort(LoadedJob& loaded, const std::string& reason);
  // Takes idle jobs away, and keeps the connections of the last one open for peers that are not
  // done reading. Free must follow.
  std::vector<LoadedJob> Unload(const std::vector<std::string>& job_ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Without the lock in between, which heartbeats want: much memory takes a while. Nobody finds
  // this worker idle meanwhile, as whoever comes next may want that memory.
  template <typename T>
  void Free(T memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes a loaded for `attempt`, which is loading from then on; those that are in its way are
  // idle, and unloaded.
  absl::Status BeginLoad(const v1::Attempt& attempt, bool serves);
  // Ends what BeginLoad began: the loaded, or why there is none; `job` is freed then.
  template <typename Job>
  absl::StatusOr<LoadedJob*> EndLoad(const v1::Attempt& attempt,
                                  absl::StatusOr<std::unique_ptr<Job>>* job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The loaded, which runs from then on, if `attempt` is loaded and does not run.
  absl::StatusOr<LoadedJob*> BeginRun(const v1::Attempt& attempt, bool serves)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Load(const v1::LoadProgramRequest& request, v1::LoadProgramReply* reply);
  absl::Status RunLoaded(const v1::RunRequest& request,
                         const std::function<absl::Status(const v1::RunEvent&)>& emit);
  absl::Status LoadServing(const v1::StartServingRequest& request,
                           v1::StartServingReply* reply);
  using StepStream = grpc::ServerReaderWriter<v1::ServingResult, v1::ServingStep>;
  absl::Status RunSteps(grpc::ServerContext* context, StepStream* stream);
  auto ConnectOf(const v1::Attempt& attempt) const {
    return [this, attempt](int rank, int size, const PeerTimeouts& timeouts,
                           std::function<bool()> cancelled) {
      return options_.connect(attempt, rank, size, timeouts, std::move(cancelled));
    };
  }

  // For who loads the job, until EndLoad.
  std::function<bool()> IsAborted(const std::string& job_id) {
    return [this, job_id] {
      absl::MutexLock lock(&mutex_);
      return Find(job_id)->abort_load;
    };
  }

  const WorkerServiceOptions options_;
  DeviceThread device_thread_;  // for served models

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  bool measuring_ ABSL_GUARDED_BY(mutex_) = false;
  int freeing_ ABSL_GUARDED_BY(mutex_) = 0;                        // calls of Free
  std::map<std::string, LoadedJob> loaded_jobs_ ABSL_GUARDED_BY(mutex_);  // by job
  std::unique_ptr<Communicator> draining_communicator_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> stopped_ ABSL_GUARDED_BY(mutex_);  // job -> attempts up to here
  bool has_link_ ABSL_GUARDED_BY(mutex_) = false;
  v1::Link link_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
