// All sessions: opens them on idle workers, and ends those that nobody uses any more. Sessions live
// in memory: they end with the coordinator.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "espalier/v1/session.pb.h"
#include "server/jobs/calibrated_planner.h"
#include "server/sessions/session.h"
#include "server/sessions/session_ranks.h"
#include "storage/checkpoint_store.h"
#include "storage/dataset_roots.h"
#include "storage/folder_checkpoint_store.h"

namespace espalier {

struct SessionManagerOptions {
  const OpRegistry* registry = nullptr;
  ArtifactStore* artifacts = nullptr;
  CalibratedPlanner* planner = nullptr;
  FileSystem* files = nullptr;
  CheckpointStore* checkpoints = nullptr;        // sessions use folders "session-..." of it
  FolderCheckpointStore* data_folder = nullptr;  // the coordinator's
  const DatasetRoots* dataset_roots = nullptr;
  const Clock* clock = nullptr;
  SessionCluster cluster;
};

// The error for an unknown session.
absl::Status SessionNotFound(const std::string& session_id);

// Thread-safe. What the options point to must outlive it.
class SessionManager {
 public:
  explicit SessionManager(SessionManagerOptions options);
  ~SessionManager();

  // Removes what an earlier coordinator left behind, and begins to watch sessions.
  void Start();
  // Ends all sessions.
  void Stop();

  // `cancelled` is polled; once it returns true, nothing is opened.
  absl::Status Open(const v1::OpenSessionRequest& request, const std::string& owner,
                    const std::function<bool()>& cancelled, v1::OpenSessionReply* reply);
  absl::Status Close(const std::string& session_id);
  std::vector<v1::SessionInfo> List() const;
  std::optional<std::string> OwnerOf(const std::string& session_id) const;
  absl::StatusOr<std::shared_ptr<Session>> Find(const std::string& session_id) const;

 private:
  // Waits for idle workers and returns those that the session is to have.
  absl::StatusOr<std::vector<Member>> ChooseWorkers(const v1::OpenSessionRequest& request,
                                                    const std::function<bool()>& cancelled) const;
  absl::StatusOr<v1::Plan> MakePlan(const PreparedSession& prepared, SessionRanks& ranks,
                                    const std::function<bool()>& cancelled);
  // Reads and loads the session's programs, and returns its tensors.
  absl::StatusOr<SessionTensors> Load(const v1::Plan& plan, const std::string& folder,
                                      PreparedSession* prepared, SessionRanks& ranks);
  void Watch();

  const SessionManagerOptions options_;
  const SessionTools tools_;
  mutable absl::Mutex mutex_;
  absl::CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mutex_);
  std::thread watch_;
};

}  // namespace espalier
