// Puts together what the ranks of an attempt report: a step is done, and a checkpoint complete,
// when every rank has said so.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/worker.pb.h"
#include "worker/checkpoint/manifest.h"

namespace espalier {

// Sums the values of the ranks; "learning_rate" is the same on all and is not summed. Seconds are
// those of the slowest rank.
v1::StepReport MergeReports(const std::vector<v1::StepReport>& ranks);

// Not thread-safe.
class RankReportMerger {
 public:
  explicit RankReportMerger(int ranks) : ranks_(ranks) {}

  // What values become once they are merged, by name; others stay as they are. Before any report.
  void SetFinishes(std::map<std::string, double (*)(double)> finishes) {
    finishes_ = std::move(finishes);
  }

  struct Checkpoint {
    int64_t steps_done = 0;
    std::string directory;
    std::vector<ManifestFile> files;  // by rank
  };

  // The merged report once the last rank has finished the step.
  std::optional<v1::StepReport> AddStep(int rank, const v1::StepReport& report);
  // Likewise for the evaluation at the end.
  std::optional<v1::StepReport> AddEvaluation(int rank, const v1::StepReport& report);
  // The complete set once the last shard is durable. Internal if the ranks name different folders.
  absl::StatusOr<std::optional<Checkpoint>> AddShard(int rank, const v1::CheckpointShard& shard);

 private:
  using ByRank = std::map<int, v1::StepReport>;
  std::optional<v1::StepReport> Complete(const ByRank& parts) const;

  const int ranks_;
  std::map<std::string, double (*)(double)> finishes_;
  std::map<int64_t, ByRank> steps_;
  ByRank evaluation_;
  std::map<int64_t, std::map<int, v1::CheckpointShard>> shards_;
};

}  // namespace espalier
