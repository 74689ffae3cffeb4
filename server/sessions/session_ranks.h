// The ranks of a session: leased workers that have loaded its programs, and their streams of
// commands.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/jobs/worker_client.h"
#include "server/membership/rendezvous.h"
#include "server/membership/worker_registry.h"

namespace espalier {

struct SessionCluster {
  WorkerRegistry* workers = nullptr;
  Rendezvous* rendezvous = nullptr;
  WorkerDialer dial;
};

// Once a rank fails, all are stopped and released, and every command returns why.
class SessionRanks {
 public:
  // Leases `members`, by rank. Errors as WorkerRegistry::Assign. `cluster` must outlive it.
  static absl::StatusOr<std::unique_ptr<SessionRanks>> Create(const SessionCluster& cluster,
                                                              std::string session_id,
                                                              std::vector<Member> members);
  ~SessionRanks();

  // Loads all ranks, whose requests need no attempt, and connects them. Blocks. Returns the error
  // of the rank that failed first, with the worker's name. Once, first.
  absl::StatusOr<std::vector<v1::LoadProgramReply>> Load(
      std::vector<v1::LoadProgramRequest> requests);

  // Sends a command, of one or more messages, to each rank, and passes their answers to
  // `on_result`, on the calling thread, until all have answered. `messages`: by rank; one element:
  // for all. By one thread at a time. Returns Unavailable with the reason once a rank has failed;
  // so does every later call.
  using OnResult = std::function<absl::Status(size_t rank, v1::RankResult result)>;
  absl::Status Run(std::vector<std::vector<v1::RankCommand>> messages, const OnResult& on_result);

  // As Run, for an answer that says nothing: does not wait for it. An error of the ranks ends the
  // session, and shows in the next command.
  absl::Status Post(std::vector<v1::RankCommand> for_all);

  // Ends the session: commands return Unavailable with `reason`. Thread-safe; does not block.
  void Break(const std::string& reason);
  // Why it is broken; empty: it is not. Thread-safe.
  std::string broken() const;
  // Breaks the session if a worker's lease has expired. Thread-safe.
  void CheckLeases();
  // Breaks the session, and frees the workers. Blocks for some seconds at most. Thread-safe.
  void Stop();

  size_t size() const { return members_.size(); }
  const std::vector<Member>& members() const { return members_; }
  WorkerClient& client(size_t rank) { return *ranks_[rank]->client; }
  std::string Describe(size_t rank) const;

 private:
  struct Rank {
    std::unique_ptr<WorkerClient> client;
    std::unique_ptr<SessionRankStream> stream;
    std::thread reader;
    std::deque<v1::RankResult> results;  // guarded by mutex_
    bool over = false;                   // guarded by mutex_: the stream has ended
    absl::Status status;                 // guarded by mutex_: of its end
  };

  SessionRanks(const SessionCluster& cluster, std::string session_id, std::vector<Member> members);
  v1::Attempt AttemptOf(size_t rank) const;
  absl::StatusOr<v1::LoadProgramReply> LoadRank(size_t rank, v1::LoadProgramRequest request);
  // Numbers the messages and sends them.
  void Send(std::vector<std::vector<v1::RankCommand>> messages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_mutex_);
  void ReadResults(size_t rank);
  // Which workers have lost their leases, and why; empty: none has.
  std::string LostLeases() const;
  // Breaks the session for the failure of a rank, once the others had time to say what they know.
  // Names the worker that is the cause, not those that only missed it.
  void Diagnose() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Broken() const;

  const SessionCluster& cluster_;
  const std::string session_id_;
  const std::vector<Member> members_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  std::string broken_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex run_mutex_;                             // held while a command uses the streams
  uint64_t number_ ABSL_GUARDED_BY(run_mutex_) = 0;   // of the last command
  uint64_t awaited_ ABSL_GUARDED_BY(run_mutex_) = 0;  // the last one whose answer was awaited
  absl::Mutex stop_mutex_ ABSL_ACQUIRED_BEFORE(run_mutex_);
  bool stopped_ ABSL_GUARDED_BY(stop_mutex_) = false;
};

}  // namespace espalier
