// A ModelRunner on workers. If a worker is lost, steps fail with Unavailable, and a thread reloads
// the model as soon as enough workers are available: remaining ones or ones that reconnect, either
// idle or with enough memory left beside other models of the same group. If a worker is about to
// leave, the thread loads the model on others, if there are any, and steps go on there once no
// request runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/inference/remote/serving_session.h"
#include "serving/runner/model_runner.h"

namespace espalier {

class RemoteModelRunner : public ModelRunner {
 public:
  // Loads the model before it returns. Returns FailedPrecondition, listing the workers, if there
  // are too few; ResourceExhausted if there are enough, but not with enough memory. With `may_wait`
  // it is loaded later.
  static absl::StatusOr<std::unique_ptr<RemoteModelRunner>> Create(ServingCluster cluster,
                                                                   RemoteModel model,
                                                                   bool may_wait);
  // Unloads the model.
  ~RemoteModelRunner() override;

  RunnerLimits limits() const override { return model_.limits; }
  // Returns Unavailable while the model is not loaded.
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override;
  absl::Status Begin(const RunnerBatch& batch) override;
  absl::Status End(RunnerOutput* logits) override;
  uint64_t cache_generation() override;
  bool is_to_move() override;
  void Abandon() override;

  struct Placement {
    std::string state;                 // "ready", or what it waits for
    std::vector<std::string> workers;  // by rank; empty while waiting
  };
  Placement placement() const;  // thread-safe

 private:
  RemoteModelRunner(ServingCluster cluster, RemoteModel model)
      : cluster_(std::move(cluster)), model_(std::move(model)) {}
  // `except`: workers that are not to be chosen.
  absl::StatusOr<std::vector<Member>> ChooseWorkers(int64_t bytes,
                                                    const std::vector<Member>& except) const;
  absl::Status TooFewWorkers(int64_t bytes,
                             const std::vector<WorkerRegistry::AvailableWorker>& available) const;
  bool is_llm() const { return model_.group != nullptr && !model_.drafts; }
  void StepIsOver();
  // Adds the model's name and state to a session's error, for Begin and End.
  absl::Status Explain(const absl::Status& status);
  // Assigns workers to a new session.
  absl::StatusOr<std::shared_ptr<ServingSession>> AssignWorkers(
      const std::vector<Member>& except = {});
  // Loads it; the next step uses it.
  absl::Status Load(const std::shared_ptr<ServingSession>& session);
  // Loads the model on other workers if one of the session's is about to leave and there are
  // enough. Otherwise it stays until that one has left.
  void MoveIfWorkerLeaves(const std::shared_ptr<ServingSession>& session);
  // Ends the session that was moved away from, once no step needs it.
  void EndLeft();
  // Body of reload_thread_: watches the newest session and replaces it when it breaks.
  void ReloadLoop();
  // Returns false when stopping.
  bool SleepUnlessStopping(absl::Duration duration);

  const ServingCluster cluster_;
  const RemoteModel model_;

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  // The session being loaded, and the newest loaded one unless broken. The engine's thread uses
  // `current_` until it calls cache_generation().
  std::shared_ptr<ServingSession> loading_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ServingSession> newest_ ABSL_GUARDED_BY(mutex_);
  // That is being moved away from. Equal to newest_ until the model is loaded elsewhere.
  std::shared_ptr<ServingSession> left_ ABSL_GUARDED_BY(mutex_);
  int open_steps_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_step_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::string state_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread reload_thread_;
  absl::Time next_move_ = absl::InfinitePast();  // of reload_thread_

  // Used by the engine's thread, which changes it with mutex_, and read by reload_thread_.
  std::shared_ptr<ServingSession> current_;
  uint64_t generation_ = 0;
};

}  // namespace espalier
