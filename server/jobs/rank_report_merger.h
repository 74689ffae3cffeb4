// Merges the reports of an attempt's ranks: a step is done, and a checkpoint complete, when every
// rank has reported it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/worker.pb.h"
#include "storage/manifest.h"

namespace espalier {

// Limit of the tensors in a step's reports, over all ranks (StepReport.tensors).
inline constexpr int64_t kMaxStepTensorBytes = 4 << 20;

// Sums the values over ranks, except "learning_rate", which is the same on all. Seconds are the
// maximum over ranks. Tensors are not summed, as they may be copies or other stages' activations:
// of several reports with a name, the first one's counts.
v1::StepReport MergeReports(const std::vector<v1::StepReport>& ranks);

// Not thread-safe.
class RankReportMerger {
 public:
  // Workers write their shards beneath `folder` of the checkpoint store.
  RankReportMerger(int ranks, std::string folder) : ranks_(ranks), folder_(std::move(folder)) {}

  // Sets the functions applied to merged values, by name; other values stay unchanged. Call before
  // any report.
  void SetFinishes(std::map<std::string, double (*)(double)> finishes) {
    finishes_ = std::move(finishes);
  }

  // The others hold nothing that a checkpoint needs, and may be many steps ahead: nothing waits for
  // their shards. Empty, as at first: all ranks save. Call before any report.
  void SetSavingRanks(std::set<int> ranks) { saving_ = std::move(ranks); }

  struct Checkpoint {
    int64_t steps_done = 0;
    std::string directory;
    std::vector<ManifestFile> files;  // by rank; of each its shard, then what is shared
    std::string not_written;  // of a rank whose disk was full; empty: all shards are durable
    // As in CheckpointShard, of the rank that has the most.
    double stall_seconds = 0;
    double write_seconds = 0;
  };

  // Returns the merged report once the last rank has finished the step. Returns InvalidArgument if
  // the step's tensors exceed kMaxStepTensorBytes; the report is then not kept.
  absl::StatusOr<std::optional<v1::StepReport>> AddStep(int rank, const v1::StepReport& report);
  // Returns the merged report once the last rank has finished the evaluation after that many steps.
  std::optional<v1::StepReport> AddEvaluation(int rank, const v1::StepReport& report);
  // Returns the checkpoint once every rank that saves has written its shard or found no room for
  // it. Returns Internal if the ranks name different folders, PermissionDenied if one names a
  // folder or file that is not the job's: the coordinator would read and write there.
  absl::StatusOr<std::optional<Checkpoint>> AddShard(int rank, const v1::CheckpointShard& shard);

 private:
  using ByRank = std::map<int, v1::StepReport>;
  std::optional<v1::StepReport> Complete(const ByRank& parts) const;

  const int ranks_;
  const std::string folder_;
  std::map<std::string, double (*)(double)> finishes_;
  std::set<int> saving_;
  std::map<int64_t, ByRank> steps_;
  std::map<int64_t, ByRank> evaluations_;
  std::map<int64_t, std::map<int, v1::CheckpointShard>> shards_;
};

}  // namespace espalier
