// The Worker service (espalier/v1/worker.proto): one training job or session, or several served
// models whose steps take turns. Checks attempts and leases. The coordinator ensures that the
// models fit into the worker's memory.
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
#include "worker/serve_session.h"
#include "worker/serve_steps.h"
#include "worker/serving_job.h"
#include "worker/training_job.h"

namespace espalier {

struct WorkerServiceOptions {
  Device* device = nullptr;
  FileSystem* files = nullptr;
  // What an attempt reads and writes besides its dataset.
  std::function<std::shared_ptr<JobStorage>(const v1::Attempt&, const ShardPlaces&)> storage;
  // Where this host has the coordinator's data folder, if it has it somewhere else.
  std::string data_dir;
  std::function<absl::StatusOr<std::shared_ptr<const Dataset>>(const v1::Dataset&)> open_dataset;
  // TrainingJobOptions::connect for an attempt.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
      const v1::Attempt& attempt, int rank, int size, const PeerTimeouts& timeouts,
      std::function<bool()> cancelled)>
      connect;
  // Checks a call's "authorization" metadata before every RPC. Null: accepts all.
  std::function<absl::Status(const std::string& authorization)> authorize;
};

class WorkerService : public v1::Worker::Service {
 public:
  explicit WorkerService(WorkerServiceOptions options) : options_(std::move(options)) {}
  ~WorkerService() override;

  // Sets the epoch of the lease, after every Join. Calls with another epoch are rejected.
  void SetEpoch(uint64_t epoch);
  // Sets the key of the request with which the worker asks to join; before that request.
  void SetJoinKey(const std::string& key);
  // Aborts and unloads every job, and waits for that.
  void AbortAll(const std::string& reason);

  std::vector<std::string> running_jobs() const;
  // Returns the last link measured between two ranks since the previous call, if any.
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
  grpc::Status RunSession(grpc::ServerContext* context, SessionStream* stream) override;
  grpc::Status CheckpointAt(grpc::ServerContext* context, const v1::CheckpointAtRequest* request,
                            v1::CheckpointAtReply* reply) override;
  grpc::Status Stop(grpc::ServerContext* context, const v1::StopRequest* request,
                    v1::StopReply* reply) override;
  grpc::Status Measure(grpc::ServerContext* context, const v1::MeasureRequest* request,
                       v1::MeasureReply* reply) override;
  grpc::Status Probe(grpc::ServerContext* context, const v1::ProbeRequest* request,
                     v1::ProbeReply* reply) override;

 private:
  // State of a loaded job.
  enum class State { kLoading, kIdle, kRunning };
  // Served models share a worker; the others are alone.
  enum class Kind { kTraining, kSession, kServing };
  // A job on this worker. While it loads or runs, only the RPC that does so may remove it.
  struct LoadedJob {
    uint64_t attempt = 0;
    Kind kind = Kind::kTraining;
    State state = State::kLoading;
    bool abort_load = false;
    bool finished = false;  // a Run has ended
    // After loading exactly one is set.
    std::shared_ptr<TrainingJob> training;
    std::shared_ptr<SessionJob> session;
    std::shared_ptr<ServingJob> serving;
    // The open stream of steps or commands, which may be waiting for the next one.
    grpc::ServerContext* steps = nullptr;
  };

  absl::Status Authorize(const grpc::ServerContext& context) const;
  absl::Status CheckAttempt(const v1::Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the loaded job, or null.
  LoadedJob* Find(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns FailedPrecondition if a job that cannot share the worker with this attempt is loading
  // or running. Aborts older attempts of the same job.
  absl::Status CheckFree(const v1::Attempt& attempt, Kind kind)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until the job is idle and nothing is being measured or freed. Returns false after
  // `timeout`.
  bool WaitIdle(const std::string& job_id, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Idle(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Abort(LoadedJob& loaded, const std::string& reason);
  // Removes idle jobs and keeps the last one's communicator open for peers that are still reading.
  // Free must follow.
  std::vector<LoadedJob> Unload(const std::vector<std::string>& job_ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Destroys `memory` without holding the lock, which heartbeats need: freeing much memory takes a
  // while. The worker does not count as idle meanwhile, since the next job may need that memory.
  template <typename T>
  void Free(T memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds `attempt` as a loading job. Jobs in its way are idle, and are unloaded.
  absl::Status BeginLoad(const v1::Attempt& attempt, Kind kind);
  // Ends BeginLoad. Returns the loaded job, or an error after freeing `job`.
  template <typename Job>
  absl::StatusOr<LoadedJob*> EndLoad(const v1::Attempt& attempt,
                                     absl::StatusOr<std::unique_ptr<Job>>* job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Marks the job running and returns it, if `attempt` is loaded and idle.
  absl::StatusOr<LoadedJob*> BeginRun(const v1::Attempt& attempt, Kind kind)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Load(const v1::LoadProgramRequest& request, v1::LoadProgramReply* reply);
  absl::Status LoadSession(const v1::LoadProgramRequest& request, v1::LoadProgramReply* reply);
  TrainingJobOptions OptionsOf(const v1::LoadProgramRequest& request);
  absl::Status RunCommands(grpc::ServerContext* context, SessionStream* stream);
  absl::Status RunLoaded(const v1::RunRequest& request,
                         const std::function<absl::Status(const v1::RunEvent&)>& emit);
  absl::Status LoadServing(const v1::StartServingRequest& request, v1::StartServingReply* reply);
  absl::Status RunSteps(grpc::ServerContext* context, StepStream* stream);
  auto ConnectOf(const v1::Attempt& attempt) const {
    return [this, attempt](int rank, int size, const PeerTimeouts& timeouts,
                           std::function<bool()> cancelled) {
      return options_.connect(attempt, rank, size, timeouts, std::move(cancelled));
    };
  }

  // Polled by the loading call, until EndLoad.
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
  std::string join_key_ ABSL_GUARDED_BY(mutex_);
  bool measuring_ ABSL_GUARDED_BY(mutex_) = false;
  int freeing_ ABSL_GUARDED_BY(mutex_) = 0;                               // calls of Free
  std::map<std::string, LoadedJob> loaded_jobs_ ABSL_GUARDED_BY(mutex_);  // by job
  std::unique_ptr<Communicator> draining_communicator_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> stopped_ ABSL_GUARDED_BY(mutex_);  // job -> attempts up to here
  bool has_link_ ABSL_GUARDED_BY(mutex_) = false;
  v1::Link link_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
