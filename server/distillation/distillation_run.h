// The way of one boost-tuning: continuations, then for each SSM training and scoring, then the
// measurement on the held-out prompts. Every step that is done is written down before the next one
// begins; one that was interrupted begins anew, but for continuations, which are written down as
// they come, and training, which is a job of its own.
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

// Where the prompts of a job are kept in the job store.
std::string DistillationPromptsBlob(const std::string& id);

// How long to go on before what has come is written down once more, if the last writing took so
// long: all of it is written each time, which may be hundreds of megabytes, and others wait for the
// job store meanwhile.
absl::Duration PauseBetweenWrites(absl::Duration taken);

class DistillationRun {
 public:
  struct Listener {
    // Makes the record durable.
    std::function<absl::Status(const v1::DistillationJob&)> save;
    // Tells of the present stage. An error, Cancelled as a rule, ends the run with it.
    std::function<absl::Status(const std::string& stage, int64_t done, int64_t total)> progress;
  };

  DistillationRun(const DistillationDependencies& tools, v1::DistillationJob job, Listener listener)
      : tools_(tools), job_(std::move(job)), listener_(std::move(listener)) {}

  // Blocks until all is done.
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
                                   const std::vector<int>& ssms, const std::string& stage);
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
