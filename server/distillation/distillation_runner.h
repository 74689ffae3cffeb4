// All distillation jobs: accepts them, keeps their records, and runs them one at a time in a thread
// of its own. Acknowledged changes are durable; after a restart of the coordinator, the running job
// continues.
#pragma once

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/distillation.pb.h"
#include "server/distillation/distillation_dependencies.h"

namespace espalier {

// The error for an unknown id.
absl::Status DistillationNotFound(const std::string& id);

// Thread-safe.
class DistillationRunner {
 public:
  explicit DistillationRunner(DistillationDependencies tools) : tools_(std::move(tools)) {}
  ~DistillationRunner() { Stop(); }

  // Loads the records of the store. Call before any other method except Stop.
  absl::Status Open();
  // Starts to run jobs. Call when training jobs and served models have been restored.
  void Start();
  // Interrupts the running job, which continues after a restart, and joins the thread. Idempotent.
  void Stop();

  // The same request with the same idempotency key returns the same job. Returns errors of
  // CheckDistillationSpec; InvalidArgument for another request with that key; AlreadyExists if an
  // unfinished job would write the same artifacts.
  absl::Status Submit(const v1::SubmitDistillationRequest& request, const std::string& owner,
                      v1::DistillationReply* reply);
  // Owner of a job; nothing for an unknown id.
  std::optional<std::string> OwnerOf(const std::string& id);
  // Owner of the unfinished job that will write this artifact; nothing if there is none.
  std::optional<std::string> OwnerOfOutput(const std::string& artifact);
  absl::Status Get(const v1::DistillationRequest& request, v1::DistillationReply* reply);
  absl::Status List(v1::ListDistillationsReply* reply);
  // Also cancels the training job of the run. Returns FailedPrecondition if the job has ended.
  absl::Status Cancel(const v1::DistillationRequest& request, v1::DistillationReply* reply);
  // Returns FailedPrecondition unless the job failed or was cancelled; AlreadyExists as Submit.
  absl::Status Resume(const v1::DistillationRequest& request, v1::DistillationReply* reply);
  // Artifacts that jobs which are not over read.
  std::vector<ArtifactUse> ArtifactsInUse();

 private:
  void Loop();
  // Returns the next job to run; null if there is none.
  const v1::DistillationJob* Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `status`: whether the record says that the job is running.
  void RunOne(const v1::DistillationJob& job, absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns AlreadyExists if an unfinished job writes artifacts of this name.
  absl::Status CheckSoleWriter(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<v1::DistillationJob*> Find(const std::string& id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes `job` the record of its id, durably. No effect on error.
  absl::Status Write(const v1::DistillationJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Interrupted() ABSL_LOCKS_EXCLUDED(mutex_);

  const DistillationDependencies tools_;
  absl::Mutex mutex_;
  v1::DistillationRecords records_ ABSL_GUARDED_BY(mutex_);
  std::string running_ ABSL_GUARDED_BY(mutex_);  // id; empty: none
  bool cancel_ ABSL_GUARDED_BY(mutex_) = false;  // cancel the running job
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace espalier
