// What the coordinator must not forget, behind an interface: SQLite now, etcd where several
// coordinators stand by for each other.
//
// Every write is one transaction and durable when it returns. Errors: ResourceExhausted (disk
// full), FailedPrecondition (its volume has become read-only), Unavailable (I/O error; a later call
// may succeed), DataLoss (the file is damaged). After an error nothing of the write is visible and
// the store can be used on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
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
  // The last durable checkpoint's (server/jobs/checkpoint_folders.h); empty if there is none.
  std::string checkpoint_dir;
  int32_t attempts_without_progress = 0;  // since the last progress
  std::string failures;            // reasons of those, one per line
};

// The outcome of a mutating call, so that the same call repeated gets the same answer.
struct IdempotencyRecord {
  std::string method;
  std::string key;
  std::string request_hash;
  std::string reply;  // serialised
};

// Changes of one job that become visible together.
struct JobWrite {
  std::optional<JobRecord> job;  // all of it but spec and plan, unless the flags below say so
  bool create = false;           // the job must not be there yet; writes spec and plan too
  bool with_plan = false;
  std::optional<int64_t> drop_reports_from;  // first: reports of this and later steps are deleted
  std::vector<v1::StepReport> reports;    // one of the same step is replaced
  std::vector<std::string> messages;
  std::optional<IdempotencyRecord> idempotency_record;
};

// Reports and messages of a job in the order in which they were written.
struct JobLogEntry {
  int64_t sequence = 0;
  std::variant<v1::StepReport, std::string> entry;
};

struct ArtifactRecord {
  v1::Artifact artifact;
  std::string folder;  // name beneath the artifact root
};

// Thread-safe.
class JobStore {
 public:
  virtual ~JobStore() = default;

  // NotFound unless `create`; AlreadyExists if it does exist then.
  virtual absl::Status Write(const std::string& job_id, const JobWrite& write) = 0;
  virtual absl::StatusOr<JobRecord> Get(const std::string& job_id) const = 0;
  // In the order of creation. Without spec.graph, spec.search.imported and plan.
  virtual absl::StatusOr<std::vector<JobRecord>> List() const = 0;
  // At most `limit` entries after `after_sequence`; reports of steps before `from_step` are left
  // out.
  virtual absl::StatusOr<std::vector<JobLogEntry>> Log(const std::string& job_id,
                                                       int64_t after_sequence, int64_t from_step,
                                                       int limit) const = 0;

  // The recorded reply, or nullopt if the key is new. InvalidArgument if the key was used with
  // another request or method.
  virtual absl::StatusOr<std::optional<std::string>> FindReply(
      const std::string& method, const std::string& key, const std::string& request_hash) const = 0;

  // Greater than all before, restarts included.
  virtual absl::StatusOr<uint64_t> NextEpoch() = 0;

  virtual absl::Status PutArtifact(const ArtifactRecord& record, const IdempotencyRecord* idempotency_record) = 0;
  virtual absl::Status DeleteArtifact(const std::string& name, const IdempotencyRecord* idempotency_record) = 0;
  virtual absl::StatusOr<std::vector<ArtifactRecord>> Artifacts() const = 0;

  // Models that are served again after a restart, by name.
  virtual absl::Status PutServed(const v1::ServeModelRequest& request,
                                 const IdempotencyRecord* idempotency_record) = 0;
  virtual absl::Status DeleteServed(const std::string& name, const IdempotencyRecord* idempotency_record) = 0;
  virtual absl::StatusOr<std::vector<v1::ServeModelRequest>> Served() const = 0;

  // Measured operator times (planner/cost/measured.h), as an opaque value.
  virtual absl::Status PutBlob(const std::string& name, const std::string& value) = 0;
  virtual absl::StatusOr<std::string> GetBlob(const std::string& name) const = 0;  // NotFound
};

}  // namespace espalier
