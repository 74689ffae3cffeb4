// The training of a batch job, as the job's folder remembers it: a requeued run goes on with it,
// and another batch job in the same folder does not take it for its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace espalier {

struct BatchTraining {
  std::string batch_job;           // SLURM's id
  std::vector<std::string> words;  // of the command: "train", ...
  std::string before;              // id of the last job before the submission; empty: none
  std::string id;                  // empty: it is not known whether it was submitted
};

// nullopt if the folder has none.
absl::StatusOr<std::optional<BatchTraining>> ReadBatchTraining(const std::string& home);
absl::Status WriteBatchTraining(const std::string& home, const BatchTraining& training);

struct KnownTraining {
  std::string id;
  bool is_over = false;
};
// Returns the id of the training that a run of a batch job goes on with; empty: it submits one.
// `batch_job` and `words` are the run's own; `jobs` those of its coordinator, the oldest first.
std::string TrainingToResume(const std::optional<BatchTraining>& known,
                             const std::string& batch_job, int restarts,
                             const std::vector<std::string>& words,
                             const std::vector<KnownTraining>& jobs);

}  // namespace espalier
