// JobStore in etcd, for a coordinator that others stand by for (server/election).
//
// Sequence numbers of a log are the number of the write that added the entry and the place in it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/store/etcd/etcd_log.h"
#include "server/store/etcd/guarded_etcd.h"
#include "server/store/job_store.h"

namespace espalier {

class EtcdStore : public JobStore {
 public:
  // Takes over what is below the prefix, or begins a new store there. `guard` and `etcd` are used
  // until the store's end. Returns FailedPrecondition if the store's version is another one.
  static absl::StatusOr<std::unique_ptr<EtcdStore>> Open(EtcdApi* etcd, const std::string& prefix,
                                                         LeaderGuard guard,
                                                         GuardedEtcd::Limits limits = {});

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
  // The copy is a file of SqliteStore.
  absl::Status BackUp(const std::string& path, const std::function<bool()>& stopped) const override;
  absl::Status ForgetRepliesBefore(absl::Time time) override;
  absl::Status Checkpoint() override { return absl::OkStatus(); }
  absl::Status CheckPresent() const override { return etcd_.CheckLeads(); }

  // Binds the store to the data folder with this id, or, if it is bound already, returns
  // FailedPrecondition for another one: the coordinators must share the folder.
  absl::Status BindDataFolder(const std::string& id);
  // For coordinators with folders of their own: returns the id that the store is bound to, after it
  // has been bound to a new one if it was to none.
  absl::StatusOr<std::string> BoundId();
  // Whether nothing was ever written.
  bool is_new() const { return new_; }

 private:
  EtcdStore(EtcdApi* etcd, const std::string& prefix, LeaderGuard guard, GuardedEtcd::Limits limits)
      : etcd_(etcd, EtcdKeys(prefix), std::move(guard), limits) {}

  struct JobLogs {
    JobLogs(const GuardedEtcd* etcd, const std::string& job_id);
    EtcdLog all;
    EtcdLog validations;  // alone, so that they can be read without the reports
  };

  absl::StatusOr<JobLogs*> LogsOf(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes changes of different jobs in one transaction: all or none.
  absl::Status WriteTogether(const NamedWrite* begin, const NamedWrite* end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `place`: of the write in its transaction.
  void AddJob(const std::string& job_id, const JobWrite& write, uint64_t place, EtcdChange* change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AddLog(JobLogs* logs, const JobWrite& write, EtcdChange* change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void AddReply(const IdempotencyRecord* record, EtcdChange* change);
  // Puts or deletes one value, with a recorded reply.
  absl::Status WriteOne(const std::string& name, const std::string* bytes,
                        const IdempotencyRecord* idempotency_record);
  // Reads all values of a folder, in the order of their unescaped names.
  absl::StatusOr<std::map<std::string, std::string>> ReadFolder(const std::string& folder,
                                                                int64_t* revision) const;
  absl::StatusOr<std::vector<JobRecord>> ListAt(int64_t* revision) const;
  absl::StatusOr<JobRecord> GetAt(const std::string& job_id, int64_t revision) const;  // 0: now

  GuardedEtcd etcd_;
  bool new_ = false;
  absl::Mutex mutex_;  // one write at a time
  // Of jobs that are being written to.
  std::map<std::string, std::unique_ptr<JobLogs>> logs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
