// The Worker service (proto/worker.proto): at most one job or served model at a time, attempts and
// leases checked.
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
#include "proto/worker.grpc.pb.h"
#include "worker/serving_job.h"
#include "worker/training_job.h"

namespace espalier {

struct WorkerServiceOptions {
  Device* device = nullptr;
  FileSystem* files = nullptr;
  std::function<absl::StatusOr<std::shared_ptr<const Dataset>>(const proto::Dataset&)> open_dataset;
  // As TrainingJobOptions::connect, for an attempt.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
      const proto::Attempt& attempt, int rank, int size, absl::Duration timeout,
      std::function<bool()> cancelled)>
      connect;
  // Decides on the value of a call's "authorization" metadata, before every RPC. Null: all may
  // call.
  std::function<absl::Status(const std::string& authorization)> authorize;
};

class WorkerService : public proto::Worker::Service {
 public:
  explicit WorkerService(WorkerServiceOptions options) : options_(std::move(options)) {}
  ~WorkerService() override;

  // The lease's epoch, after every Join; calls that carry another one are refused.
  void SetEpoch(uint64_t epoch);
  // Ends and forgets whatever is running or loaded, and waits for it.
  void AbortAll(const std::string& reason);

  std::vector<std::string> running_jobs() const;
  // The last link measured between two ranks of a job, if any since the last call.
  bool TakeLink(proto::Link* link);

  grpc::Status LoadProgram(grpc::ServerContext* context, const proto::LoadProgramRequest* request,
                           proto::LoadProgramReply* reply) override;
  grpc::Status Run(grpc::ServerContext* context, const proto::RunRequest* request,
                   grpc::ServerWriter<proto::RunEvent>* writer) override;
  grpc::Status StartServing(grpc::ServerContext* context, const proto::StartServingRequest* request,
                            proto::StartServingReply* reply) override;
  grpc::Status ServingSteps(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<proto::ServingResult, proto::ServingStep>* stream) override;
  grpc::Status Stop(grpc::ServerContext* context, const proto::StopRequest* request,
                    proto::StopReply* reply) override;
  grpc::Status Measure(grpc::ServerContext* context, const proto::MeasureRequest* request,
                       proto::MeasureReply* reply) override;

 private:
  enum class State { kIdle, kLoading, kRunning, kMeasuring };

  absl::Status Authorize(const grpc::ServerContext& context) const;
  absl::Status CheckAttempt(const proto::Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until the device is free; false after `timeout`.
  bool WaitIdle(absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AbortCurrent(const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops the loaded job but keeps its connections open for peers that are not done reading.
  void Unload() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the device for `attempt`, which is loading from then on.
  absl::Status BeginLoad(const proto::Attempt& attempt);
  // Ends what BeginLoad began; whether what was loaded may be kept.
  absl::Status EndLoad(const absl::Status& loaded) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether `attempt` is what is loaded (`job` is it), and nothing runs.
  absl::Status CheckLoaded(const proto::Attempt& attempt, const WorkerJob* job, const char* call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Load(const proto::LoadProgramRequest& request, proto::LoadProgramReply* reply);
  absl::Status RunLoaded(const proto::RunRequest& request,
                         const std::function<absl::Status(const proto::RunEvent&)>& emit);
  absl::Status LoadServing(const proto::StartServingRequest& request,
                           proto::StartServingReply* reply);
  using StepStream = grpc::ServerReaderWriter<proto::ServingResult, proto::ServingStep>;
  absl::Status RunSteps(grpc::ServerContext* context, StepStream* stream);
  auto ConnectOf(const proto::Attempt& attempt) const {
    return [this, attempt](int rank, int size, absl::Duration timeout,
                           std::function<bool()> cancelled) {
      return options_.connect(attempt, rank, size, timeout, std::move(cancelled));
    };
  }

  const WorkerServiceOptions options_;

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kIdle;
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  proto::Attempt current_ ABSL_GUARDED_BY(mutex_);  // loading, loaded or running
  bool abort_load_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // a Run of job_ has ended
  // At most one of the two.
  std::shared_ptr<TrainingJob> job_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ServingJob> serving_ ABSL_GUARDED_BY(mutex_);
  // Of the stream of steps that is open: it may wait for the next step.
  grpc::ServerContext* steps_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::unique_ptr<Communicator> lingering_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> stopped_ ABSL_GUARDED_BY(mutex_);  // job -> attempts up to here
  bool has_link_ ABSL_GUARDED_BY(mutex_) = false;
  proto::Link link_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
