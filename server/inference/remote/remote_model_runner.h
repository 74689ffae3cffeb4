// The serving engine's ModelRunner on workers. When one of them is lost the steps fail with
// Unavailable, and a thread of the runner's own loads the model again as soon as there are enough
// workers: the ones that remain, or those that come back. These are idle, or have room beside what
// they hold of the models that are served together with it.
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
#include "serving/engine/model_runner.h"

namespace espalier {

class RemoteModelRunner : public ModelRunner {
 public:
  // Loads the model before it returns. FailedPrecondition, with what there is, if there are not
  // enough workers; ResourceExhausted, likewise, if there are, but not with enough memory. With
  // `may_wait` it is loaded later.
  static absl::StatusOr<std::unique_ptr<RemoteModelRunner>> Create(ServingCluster cluster,
                                                                   RemoteModel model,
                                                                   bool may_wait);
  // Unloads the model.
  ~RemoteModelRunner() override;

  RunnerLimits limits() const override { return model_.limits; }
  // Unavailable while the model is not loaded.
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override;
  absl::Status Begin(const RunnerBatch& batch) override;
  absl::Status End(RunnerOutput* logits) override;
  uint64_t cache_generation() override;
  void Abandon() override;

  struct Placement {
    std::string state;                 // "ready", or what it waits for
    std::vector<std::string> workers;  // by rank; none while it waits
  };
  Placement placement() const;  // from any thread

 private:
  RemoteModelRunner(ServingCluster cluster, RemoteModel model)
      : cluster_(std::move(cluster)), model_(std::move(model)) {}
  absl::StatusOr<std::vector<Member>> ChooseWorkers(int64_t bytes) const;
  absl::Status TooFewWorkers(int64_t bytes, const std::vector<WorkerRegistry::Room>& rooms) const;
  bool is_llm() const { return model_.group != nullptr && !model_.drafts; }
  // What Begin and End say of a session's error.
  absl::Status Explain(const absl::Status& status);
  // A session on workers that are taken for it.
  absl::StatusOr<std::shared_ptr<ServingSession>> AssignWorkers();
  // Loads it, for the next step to find.
  absl::Status Load(const std::shared_ptr<ServingSession>& session);
  // The keeper's thread: watches the newest session, and makes another one when it is broken.
  void ReloadLoop();
  // False when it is time to end.
  bool SleepUnlessStopping(absl::Duration duration);

  const ServingCluster cluster_;
  const RemoteModel model_;

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  // The one that is loading; then the newest one, if it is not broken. The engine's thread works
  // with `current_` until it asks for the generation.
  std::shared_ptr<ServingSession> loading_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ServingSession> newest_ ABSL_GUARDED_BY(mutex_);
  std::string state_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread reload_thread_;

  // Of the engine's thread.
  std::shared_ptr<ServingSession> current_;
  uint64_t generation_ = 0;
};

}  // namespace espalier
