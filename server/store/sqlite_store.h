// JobStore in one SQLite file: write-ahead log, synchronous=FULL, one connection that locks the
// file exclusively (a second coordinator on the same data directory is refused). Changes that come
// while others are written become durable together, by one sync (sqlite_transactions.cc).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "server/store/job_store.h"
#include "server/store/sqlite.h"

namespace espalier {

class SqliteStore : public JobStore {
 public:
  struct Options {
    int64_t max_pages = 0;  // of 4 KiB; 0: no limit. A full file reports as a full disk
  };

  // Creates the file if needed and checks all of it. Returns DataLoss if it is damaged or not an
  // Espalier store, and FailedPrecondition if its version is newer or another process holds it.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const std::string& path,
                                                           Options options);
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const std::string& path) {
    return Open(path, Options{});
  }
  ~SqliteStore() override;

  absl::Status Write(const std::string& job_id, const JobWrite& write) override;
  std::vector<absl::Status> WriteAll(const std::vector<NamedWrite>& writes) override;
  absl::Status DeleteJob(const std::string& job_id,
                         const IdempotencyRecord* idempotency_record) override;
  absl::StatusOr<JobRecord> Get(const std::string& job_id) const override;
  absl::StatusOr<std::vector<JobRecord>> List() const override;
  absl::StatusOr<std::vector<JobLogEntry>> Log(const std::string& job_id, int64_t after_sequence,
                                               int64_t from_step, int limit) const override;
  absl::StatusOr<std::vector<v1::StepReport>> Validations(const std::string& job_id) const override;
  absl::StatusOr<std::optional<std::string>> FindReply(
      const std::string& method, const std::string& key,
      const std::string& request_hash) const override;
  absl::StatusOr<uint64_t> NextEpoch() override;
  absl::Status PutArtifact(const ArtifactRecord& record,
                           const IdempotencyRecord* idempotency_record) override;
  absl::Status DeleteArtifact(const std::string& name,
                              const IdempotencyRecord* idempotency_record) override;
  absl::StatusOr<std::vector<ArtifactRecord>> Artifacts() const override;
  absl::Status PutServed(const v1::ServeModelRequest& request,
                         const IdempotencyRecord* idempotency_record) override;
  absl::Status DeleteServed(const std::string& name,
                            const IdempotencyRecord* idempotency_record) override;
  absl::StatusOr<std::vector<v1::ServeModelRequest>> Served() const override;
  absl::Status PutBlob(const std::string& name, const std::string& value) override;
  absl::Status DeleteBlob(const std::string& name) override;
  absl::StatusOr<std::string> GetBlob(const std::string& name) const override;
  absl::Status BackUp(const std::string& path, const std::function<bool()>& stopped) const override;
  absl::Status ForgetRepliesBefore(absl::Time time) override;
  absl::Status Checkpoint() override;
  absl::Status CheckPresent() const override;

  // For a copy of another store: the next epoch is greater than this one.
  absl::Status SetEpoch(uint64_t epoch);

 private:
  explicit SqliteStore(sqlite3* database) : database_(database) {}

  absl::Status Prepare(const std::string& path, const Options& options)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Execute(const std::string& sql) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Statement& Sql(const std::string& sql) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckFile() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteJob(const std::string& job_id, const JobWrite& write)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status InsertIdempotencyRecord(const IdempotencyRecord& idempotency_record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Status LoadKeys() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // A change, all of which is visible or none.
  struct StoreChange {
    std::function<absl::Status()> body;  // called with mutex_, perhaps by another thread, or twice
    bool done = false;
    absl::Status status;
  };
  absl::Status InTransaction(std::function<absl::Status()> body) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes changes durable, and with them those that other threads wait to make; `status` says which
  // are. A change that fails does not concern the others.
  void Run(std::vector<StoreChange>* changes) ABSL_LOCKS_EXCLUDED(mutex_, queue_mutex_);
  void RunTogether(const std::vector<StoreChange*>& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns false if none of them is visible, although some may have been run.
  bool RunInOneTransaction(const std::vector<StoreChange*>& changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex queue_mutex_;
  absl::CondVar written_together_;
  bool writing_ ABSL_GUARDED_BY(queue_mutex_) = false;
  std::vector<StoreChange*> queue_ ABSL_GUARDED_BY(queue_mutex_);

  // Hashes of the idempotency keys, so that a new key need not wait for the connection. A superset.
  mutable absl::Mutex keys_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  absl::flat_hash_set<size_t> keys_ ABSL_GUARDED_BY(keys_mutex_);

  mutable absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(queue_mutex_);
  sqlite3* const database_;
  bool written_ ABSL_GUARDED_BY(mutex_) = true;  // since the last Checkpoint
  mutable std::map<std::string, std::unique_ptr<Statement>> statements_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
