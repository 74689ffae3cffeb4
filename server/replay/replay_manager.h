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
#include "server/replay/replay_planner.h"
#include "server/replay/replay_records.h"
#include "server/replay/running_replay.h"
#include "server/store/job_store.h"

namespace espalier {

// The error for an unknown replay.
absl::Status ReplayNotFound(const std::string& replay_id);

// Thread-safe. Errors are those of the Replay service.
class ReplayManager {
 public:
  // What the tools point to, and `jobs`, must outlive it.
  ReplayManager(const ReplayTools& tools, JobStore* jobs);
  ~ReplayManager();

  // Loads the replays of the store, and goes on with those that are not over; forgets those whose
  // jobs are deleted. The jobs must be loaded.
  absl::Status Start();
  // Interrupts all.
  void Stop();

  absl::Status Estimate(const v1::ReplaySpec& spec, const Caller& caller,
                        v1::ReplayEstimate* estimate) const;
  // Idempotent by the request's key.
  absl::Status Begin(const v1::StartReplayRequest& request, const Caller& caller,
                     v1::ReplayInfo* replay);
  absl::Status Cancel(const std::string& replay_id, v1::ReplayInfo* replay);
  // Those of the runs that `run` names (empty: all), of which the caller may see jobs and replays;
  // the newest first.
  absl::Status List(const std::string& run, const Caller& caller,
                    v1::ListReplaysReply* reply) const;
  std::optional<std::string> OwnerOf(const std::string& replay_id) const;

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
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace espalier
