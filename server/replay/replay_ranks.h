// Leased workers that run one segment of a replay, as ranks of a plan.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/worker.pb.h"
#include "server/jobs/attempt.h"
#include "server/jobs/worker_client.h"
#include "server/membership/worker_registry.h"

namespace espalier {

// The name under which a replay's segment reads a job's files; see server/storage/object_access.h.
std::string ReplayAttemptName(const std::string& job_id, const std::string& replay_id, int segment);

// Calls block, by one thread at a time, except Cancel. They return Unavailable if a worker is lost,
// Cancelled after Cancel, and else the error of the rank that failed first, with the worker's name.
class ReplayRanks {
 public:
  // Leases `members`, by rank; FailedPrecondition if one is no longer idle. `tools` must outlive
  // it. `attempt` is greater than all those before under this name: workers refuse older ones.
  static absl::StatusOr<std::unique_ptr<ReplayRanks>> Create(const AttemptTools& tools,
                                                             std::string name,
                                                             std::vector<Member> members,
                                                             uint64_t attempt = 1);
  // Stops the workers and gives them back.
  ~ReplayRanks();

  // Requests need no attempt.
  absl::StatusOr<std::vector<v1::LoadProgramReply>> Load(
      std::vector<v1::LoadProgramRequest> requests);
  // Runs steps on all ranks. `on_event` is called by one thread at a time; its error ends the run.
  using OnEvent = std::function<absl::Status(size_t rank, const v1::RunEvent& event)>;
  absl::Status Run(const v1::RunRequest& request, const OnEvent& on_event);

  // Ends the call that is under way, and all later ones. Thread-safe; does not block.
  void Cancel();

  size_t size() const { return members_.size(); }
  const std::vector<Member>& members() const { return members_; }
  WorkerClient& client(size_t rank) { return *clients_[rank]; }
  std::string Describe(size_t rank) const;

 private:
  ReplayRanks(const AttemptTools& tools, std::string name, uint64_t attempt,
              std::vector<Member> members);
  v1::Attempt AttemptOf(size_t rank) const;
  // Calls `work` for each rank on a thread of its own, and waits for all.
  absl::Status OnAll(const std::function<absl::Status(size_t rank)>& work);
  void StopWorkers();

  const AttemptTools& tools_;
  const std::string name_;
  const uint64_t attempt_;
  const std::vector<Member> members_;
  std::vector<std::unique_ptr<WorkerClient>> clients_;
  bool stopped_ = false;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace espalier
