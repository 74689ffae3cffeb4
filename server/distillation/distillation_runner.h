// All boost-tunings: takes them in, keeps their records, runs one after the other in a thread of
// its own, and answers for them. What is told to a client is durable; after a restart of the
// coordinator the one that was under way goes on.
#pragma once

#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/distillation.pb.h"
#include "server/distillation/distillation_dependencies.h"

namespace espalier {

// Thread-safe.
class DistillationRunner {
 public:
  explicit DistillationRunner(DistillationDependencies tools) : tools_(std::move(tools)) {}
  ~DistillationRunner() { Stop(); }

  // Takes up the records of the store. Before any other call but Stop.
  absl::Status Open();
  // Begins to run them, once the training jobs and the served models are there.
  void Start();
  // Interrupts what runs, which goes on after a new start, and joins the thread. Idempotent.
  void Stop();

  // The same request with its idempotency key gives the same job. Errors are those of CheckDistillationSpec;
  // InvalidArgument for another request with that key; AlreadyExists if another job that is not
  // over would write the same artifacts.
  absl::Status Submit(const v1::SubmitDistillationRequest& request, v1::DistillationReply* reply);
  absl::Status Get(const v1::DistillationRequest& request, v1::DistillationReply* reply);
  absl::Status List(v1::ListDistillationsReply* reply);
  // FailedPrecondition for a job that is over. The training job that runs for it is cancelled, too.
  absl::Status Cancel(const v1::DistillationRequest& request, v1::DistillationReply* reply);
  // FailedPrecondition for a job that did not fail and was not cancelled; AlreadyExists as for
  // Submit.
  absl::Status Resume(const v1::DistillationRequest& request, v1::DistillationReply* reply);

 private:
  void Loop();
  // Takes the next job to run; null: there is none.
  const v1::DistillationJob* Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `status`: whether the record knows that it runs.
  void RunOne(const v1::DistillationJob& job, absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  // AlreadyExists if another job that is not over writes what one of this name does.
  absl::Status CheckSoleWriter(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<v1::DistillationJob*> Find(const std::string& id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes `job` the record of its id, durably; without an error only.
  absl::Status Write(const v1::DistillationJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Interrupted() ABSL_LOCKS_EXCLUDED(mutex_);

  const DistillationDependencies tools_;
  absl::Mutex mutex_;
  v1::DistillationRecords records_ ABSL_GUARDED_BY(mutex_);
  std::string running_ ABSL_GUARDED_BY(mutex_);  // id; empty: none
  bool cancel_ ABSL_GUARDED_BY(mutex_) = false;  // the running one
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace espalier
