// The coordinator's durable state, behind an interface: SQLite (sqlite_store.h), or etcd for
// several coordinators that stand by for each other (etcd/etcd_store.h). What both must do is in
// job_store_contract_test.cc.
//
// Every write is one transaction and durable when it returns. Errors: ResourceExhausted (disk
// full), FailedPrecondition (the volume has become read-only), Unavailable (I/O error; a later call
// may succeed), DataLoss (the file is damaged). After an error no part of the write is visible and
// the store stays usable.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "espalier/v1/models.pb.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

struct JobRecord {
  v1::Job job;  // with spec and plan
  // The last durable checkpoint (server/jobs/checkpoint_folders.h); empty if none.
  std::string checkpoint_dir;
  int32_t attempts_without_progress = 0;  // since the last progress
  std::string failures;                   // reasons of those attempts, one per line
};

// The outcome of a mutating call, so that a repeated call gets the same answer.
struct IdempotencyRecord {
  std::string method;
  std::string key;
  std::string request_hash;
  std::string reply;  // serialised
};

// Changes of one job that are written in one transaction.
struct JobWrite {
  std::optional<JobRecord> job;  // without spec and plan, unless the flags below say so
  bool create = false;           // the job must not exist; also writes spec and plan
  bool with_plan = false;
  // applied first: deletes reports and validations of this and later steps
  std::optional<int64_t> drop_reports_from;
  std::vector<v1::StepReport> reports;  // replace stored reports of the same step
  // Replace stored ones after the same step. Both in the order of steps, in which they are logged.
  std::vector<v1::StepReport> validations;
  std::vector<v1::JobMessage> messages;
  std::optional<IdempotencyRecord> idempotency_record;
};

// A validation of a job (JobEvent.validation).
struct LoggedValidation {
  v1::StepReport report;
};

// A report, message or validation of a job, in the order written.
struct JobLogEntry {
  int64_t sequence = 0;
  std::variant<v1::StepReport, v1::JobMessage, LoggedValidation> entry;
};

struct ArtifactRecord {
  v1::Artifact artifact;
  std::string folder;  // name under the artifact root
};

// Thread-safe.
class JobStore {
 public:
  virtual ~JobStore() = default;

  // Returns NotFound if the job does not exist, or, with `create`, AlreadyExists if it does.
  virtual absl::Status Write(const std::string& job_id, const JobWrite& write) = 0;
  // Writes changes of different jobs, each as by Write: one may fail without the others. A store
  // may make them durable together, which is faster. Returns a status for each.
  using NamedWrite = std::pair<std::string, const JobWrite*>;
  virtual std::vector<absl::Status> WriteAll(const std::vector<NamedWrite>& writes) {
    std::vector<absl::Status> statuses;
    for (const auto& [job_id, write] : writes) statuses.push_back(Write(job_id, *write));
    return statuses;
  }
  // Deletes a job and its log. Returns NotFound if there is none. Its id is not given to another
  // job.
  virtual absl::Status DeleteJob(const std::string& job_id,
                                 const IdempotencyRecord* idempotency_record) = 0;
  virtual absl::StatusOr<JobRecord> Get(const std::string& job_id) const = 0;
  // Returns jobs in order of creation, without spec.graph, spec.search.imported and plan.
  virtual absl::StatusOr<std::vector<JobRecord>> List() const = 0;
  // Returns at most `limit` entries after `after_sequence`, without reports of steps before
  // `from_step` and without validations after steps before `from_step` - 1.
  virtual absl::StatusOr<std::vector<JobLogEntry>> Log(const std::string& job_id,
                                                       int64_t after_sequence, int64_t from_step,
                                                       int limit) const = 0;

  // Returns all validations of a job, in the order of steps.
  virtual absl::StatusOr<std::vector<v1::StepReport>> Validations(
      const std::string& job_id) const = 0;

  // Returns the recorded reply, or nullopt if the key is new. Returns InvalidArgument if the key
  // was used with another request or method.
  virtual absl::StatusOr<std::optional<std::string>> FindReply(
      const std::string& method, const std::string& key, const std::string& request_hash) const = 0;

  // Returns a number greater than all previous ones, across restarts.
  virtual absl::StatusOr<uint64_t> NextEpoch() = 0;

  virtual absl::Status PutArtifact(const ArtifactRecord& record,
                                   const IdempotencyRecord* idempotency_record) = 0;
  virtual absl::Status DeleteArtifact(const std::string& name,
                                      const IdempotencyRecord* idempotency_record) = 0;
  virtual absl::StatusOr<std::vector<ArtifactRecord>> Artifacts() const = 0;

  // Served models by name, which are served again after a restart.
  virtual absl::Status PutServed(const v1::ServeModelRequest& request,
                                 const IdempotencyRecord* idempotency_record) = 0;
  virtual absl::Status DeleteServed(const std::string& name,
                                    const IdempotencyRecord* idempotency_record) = 0;
  virtual absl::StatusOr<std::vector<v1::ServeModelRequest>> Served() const = 0;

  // Named opaque values, such as measured operator times (planner/cost/measured_cost.h).
  virtual absl::Status PutBlob(const std::string& name, const std::string& value) = 0;
  virtual absl::Status DeleteBlob(const std::string& name) = 0;  // OK if there is none
  virtual absl::StatusOr<std::string> GetBlob(const std::string& name) const = 0;  // NotFound

  // Writes a copy of everything, as of one moment, to a new file. Other calls go on meanwhile.
  // Returns Cancelled once `stopped` returns true; on error the file may be incomplete.
  virtual absl::Status BackUp(const std::string& path,
                              const std::function<bool()>& stopped) const = 0;
  // Forgets replies that were recorded before `time`. Opening a store forgets those older than
  // kRepliesKept (idempotency.h).
  virtual absl::Status ForgetRepliesBefore(absl::Time time) = 0;
  // Moves what was written into the store's main file, so that little depends on the log.
  virtual absl::Status Checkpoint() = 0;
  // Returns Unavailable if the store's file was moved or removed: every write then fails.
  virtual absl::Status CheckPresent() const = 0;
};

}  // namespace espalier
