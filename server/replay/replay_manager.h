// All replays: starts them, keeps them in the job store, and goes on with them after a restart.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/net/caller.h"
#include "espalier/v1/replay.pb.h"
#include "server/jobs/job_deletion_listener.h"
#include "server/replay/replay_planner.h"
#include "server/replay/replay_records.h"
#include "server/replay/running_replay.h"
#include "server/store/job_store.h"

namespace espalier {

// The error for an unknown replay.
absl::Status ReplayNotFound(const std::string& replay_id);

// Whether it does not go on.
bool IsReplayOver(v1::ReplayState state);

// Thread-safe. Errors are those of the Replay service.
class ReplayManager : public JobDeletionListener {
 public:
  // What the tools point to, and `jobs`, must outlive it.
  ReplayManager(const ReplayTools& tools, JobStore* jobs);
  ~ReplayManager() override;

  // Loads the replays of the store, and goes on with those that are not over, and with deletions;
  // forgets those whose jobs are deleted. The jobs must be loaded.
  absl::Status Start();
  // Interrupts all.
  void Stop();

  absl::Status Estimate(const v1::ReplaySpec& spec, const Caller& caller,
                        v1::ReplayEstimate* estimate) const;
  // Idempotent by the request's key.
  absl::Status Begin(const v1::StartReplayRequest& request, const Caller& caller,
                     v1::ReplayInfo* replay);
  absl::Status Cancel(const std::string& replay_id, v1::ReplayInfo* replay);
  absl::Status Get(const std::string& replay_id, v1::ReplayInfo* replay) const;
  // Once it returns OK, the replay and its answers are gone. An interrupted deletion hides the
  // replay; a repetition, or the next start, completes it.
  absl::Status Delete(const std::string& replay_id);
  // Those of the runs that `run` names (empty: all; "lm": all versions), of which the caller may
  // see jobs and replays; the newest first.
  absl::Status List(const std::string& run, const Caller& caller,
                    v1::ListReplaysReply* reply) const;
  std::optional<std::string> OwnerOf(const std::string& replay_id) const;

  // Refuses it while a replay reads the job's recording. Replays of deleted jobs only are
  // forgotten; those of others, too, lose what they have of the job.
  absl::Status BeforeDeletion(const std::string& job_id) override;
  void AfterDeletion(const std::string& job_id, bool deleted) override;

  // Sends the replay, and again after each change, and its answers, until it is over, `send`
  // returns false, `cancelled` returns true (polled several times a second) or on Stop.
  absl::Status Watch(const v1::WatchReplayRequest& request,
                     const std::function<bool(const v1::ReplayEvent&)>& send,
                     const std::function<bool()>& cancelled);

 private:
  struct Entry {
    v1::StoredReplay stored;
    int64_t version = 0;  // grows with each change
    std::shared_ptr<RunningReplay> running;
  };

  // Begins to run an entry's replay.
  void Run(const std::string& id, std::unique_ptr<PlannedReplay> planned)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Published(const std::string& id, const v1::ReplayInfo& info, bool durable);
  // Null: there is none, or it is being deleted.
  const Entry* Find(const std::string& id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Completes the deletion of a replay that is marked as deleted.
  absl::Status RemoveMarked(const v1::StoredReplay& replay) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes initial values that segments of an earlier coordinator have left.
  void RemoveLeftFolders() const;
  absl::Status LoadStored(std::vector<v1::StoredReplay>* marked);
  // Whether all jobs that it has replayed are deleted.
  bool HasNoJob(const v1::StoredReplay& replay) const;
  // Answers that are stored of a replay of these jobs but one. Where they cannot be read, none.
  std::optional<int64_t> CountAnswers(const std::string& replay_id,
                                      const std::vector<std::string>& jobs,
                                      const std::string& but) const;
  // Removes a deleted job's run from a replay that is over; `answers` are left.
  static void ForgetRun(const std::string& job_id, std::optional<int64_t> answers,
                        v1::StoredReplay* replay);
  // Names the runs of a replay that an earlier version has stored.
  void NameRuns(v1::StoredReplay* replay) const;
  // Sends chunks of answers that `sent` lacks.
  absl::Status SendRows(const v1::StoredReplay& replay,
                        const std::function<bool(const v1::ReplayEvent&)>& send,
                        std::set<std::pair<std::string, AnswerChunk>>* sent, bool* goes_on) const;

  const ReplayTools tools_;
  ReplayRecords records_ ABSL_GUARDED_BY(mutex_);
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  std::map<std::string, Entry> replays_ ABSL_GUARDED_BY(mutex_);  // by id
  // Ids of requests that are being planned: a repetition waits.
  std::set<std::string> starting_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> removing_ ABSL_GUARDED_BY(mutex_);  // replays, by a call of Delete
  // Jobs that are being deleted, or were since the start: none of them is replayed any more.
  std::set<std::string> gone_jobs_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace espalier
