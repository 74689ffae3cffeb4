// One distillation run (`boost-tune`): generates continuations, trains and scores each SSM in turn,
// and measures the drafts on held-out prompts. Each finished step is recorded before the next one
// starts. An interrupted step starts again, except for continuations, which are recorded as they
// come, and training, which is a separate job.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "espalier/v1/distillation.pb.h"
#include "server/distillation/distillation_dependencies.h"
#include "serving/distillation/evaluate_drafts.h"

namespace espalier {

// The key of a job's prompts in the job store.
std::string DistillationPromptsBlob(const std::string& id);

// How long to wait after a write that took this long before the next one. Each write stores all
// continuations, possibly hundreds of megabytes, and blocks other users of the job store.
absl::Duration PauseBetweenWrites(absl::Duration taken);

class DistillationRun {
 public:
  struct Listener {
    // Makes the record durable.
    std::function<absl::Status(const v1::DistillationJob&)> save;
    // Reports progress. An error, usually Cancelled, ends the run with it.
    std::function<absl::Status(const std::string& stage, int64_t done, int64_t total)> progress;
  };

  DistillationRun(const DistillationDependencies& tools, v1::DistillationJob job, Listener listener)
      : tools_(tools), job_(std::move(job)), listener_(std::move(listener)) {}

  // Blocks until the run ends.
  absl::Status Run();

  const v1::DistillationJob& job() const { return job_; }

 private:
  absl::Status LoadPrompts();
  absl::Status SavePrompts();
  absl::Status MakeContinuations();
  absl::Status Train(int k);
  absl::Status SubmitTraining(int k);
  absl::Status ResumeCancelled(const std::string& job_id);
  absl::Status WaitForTraining(int k);
  absl::Status Score(int k);
  absl::Status Measure();
  absl::StatusOr<DraftEfficiency> MeasureEfficiency(const ModelServer::Prepared& models,
                                                    const std::vector<int>& ssms,
                                                    const std::string& stage);
  absl::Status Report(int k);
  absl::Status CleanUp();
  std::string RoundName(int k) const;
  DistillationProgress ProgressOf(const std::string& stage);
  absl::Status Save() { return listener_.save(job_); }

  const DistillationDependencies& tools_;
  v1::DistillationJob job_;
  const Listener listener_;
  v1::DistillationPrompts prompts_;
};

}  // namespace espalier
