#include "server/jobs/rank_report_merger.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "storage/object_reader.h"

namespace espalier {
namespace {

int64_t TensorBytes(const v1::StepReport& report) {
  size_t bytes = 0;
  for (const auto& [name, tensor] : report.tensors()) bytes += name.size() + tensor.ByteSizeLong();
  return static_cast<int64_t>(bytes);
}

ManifestFile UnchangedFile(const v1::CheckpointShard& shard) {
  return {shard.unchanged().file(), shard.unchanged().sha256(), shard.unchanged().bytes(),
          /*shared=*/true};
}

}  // namespace

v1::StepReport MergeReports(const std::vector<v1::StepReport>& ranks) {
  v1::StepReport merged;
  if (!ranks.empty()) merged.set_step(ranks[0].step());
  for (const v1::StepReport& report : ranks) {
    merged.set_seconds(std::max(merged.seconds(), report.seconds()));
    for (const auto& [name, value] : report.values()) {
      double& sum = (*merged.mutable_values())[name];
      sum = name == "learning_rate" ? value : sum + value;
    }
    for (const auto& [name, tensor] : report.tensors()) {
      merged.mutable_tensors()->try_emplace(name, tensor);
    }
  }
  return merged;
}

std::optional<v1::StepReport> RankReportMerger::Complete(const ByRank& parts) const {
  if (static_cast<int>(parts.size()) < ranks_) return std::nullopt;
  std::vector<v1::StepReport> reports;
  for (const auto& [rank, report] : parts) reports.push_back(report);
  v1::StepReport merged = MergeReports(reports);
  for (auto& [name, value] : *merged.mutable_values()) {
    if (auto finish = finishes_.find(name); finish != finishes_.end())
      value = finish->second(value);
  }
  return merged;
}

absl::StatusOr<std::optional<v1::StepReport>> RankReportMerger::AddStep(
    int rank, const v1::StepReport& report) {
  ByRank& parts = steps_[report.step()];
  int64_t bytes = TensorBytes(report);
  for (const auto& [other, part] : parts) bytes += other == rank ? 0 : TensorBytes(part);
  if (bytes > kMaxStepTensorBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors in the reports of step ", report.step(), " have ", bytes,
                     " bytes and may have ", kMaxStepTensorBytes,
                     " over all ranks; attach smaller or fewer tensors"));
  }
  parts[rank] = report;
  std::optional<v1::StepReport> merged = Complete(parts);
  if (merged.has_value()) steps_.erase(report.step());
  return merged;
}

std::optional<v1::StepReport> RankReportMerger::AddEvaluation(int rank,
                                                              const v1::StepReport& report) {
  ByRank& parts = evaluations_[report.step()];
  parts[rank] = report;
  std::optional<v1::StepReport> merged = Complete(parts);
  if (merged.has_value()) evaluations_.erase(report.step());
  return merged;
}

absl::StatusOr<std::optional<RankReportMerger::Checkpoint>> RankReportMerger::AddShard(
    int rank, const v1::CheckpointShard& shard) {
  if (!CheckObjectName(shard.directory()).ok() || !IsBeneath(shard.directory(), folder_)) {
    return absl::PermissionDeniedError(absl::StrCat("rank ", rank, " reports a checkpoint in '",
                                                    absl::CHexEscape(shard.directory()),
                                                    "', which is not beneath ", folder_));
  }
  if (shard.has_unchanged()) {
    const std::string name = PathOf(shard.directory(), UnchangedFile(shard));
    if (!CheckObjectName(name).ok() || !IsBeneath(name, folder_) || name == shard.directory()) {
      return absl::PermissionDeniedError(
          absl::StrCat("rank ", rank, " reports the file '", absl::CHexEscape(name),
                       "' of unchanged values, which is not beneath ", folder_));
    }
  }
  if (!saving_.empty() && !saving_.contains(rank)) return std::optional<Checkpoint>();
  std::map<int, v1::CheckpointShard>& parts = shards_[shard.steps_done()];
  parts[rank] = shard;
  const size_t wanted = saving_.empty() ? static_cast<size_t>(ranks_) : saving_.size();
  if (parts.size() < wanted) return std::optional<Checkpoint>();
  Checkpoint checkpoint;
  checkpoint.steps_done = shard.steps_done();
  checkpoint.directory = shard.directory();
  for (const auto& [other, part] : parts) {
    if (part.directory() != shard.directory()) {
      return absl::InternalError(absl::StrCat("checkpoint of step ", shard.steps_done(), ": rank ",
                                              rank, " wrote to ", shard.directory(), ", rank ",
                                              other, " to ", part.directory()));
    }
    checkpoint.stall_seconds = std::max(checkpoint.stall_seconds, part.stall_seconds());
    checkpoint.write_seconds = std::max(checkpoint.write_seconds, part.write_seconds());
    if (checkpoint.not_written.empty()) checkpoint.not_written = part.not_written();
    // A rank without parameters saves no file.
    if (part.file().empty()) continue;
    checkpoint.files.push_back({part.file(), part.sha256(), part.bytes()});
    if (part.has_unchanged()) checkpoint.files.push_back(UnchangedFile(part));
  }
  shards_.erase(shards_.begin(), shards_.upper_bound(shard.steps_done()));
  return std::optional<Checkpoint>(std::move(checkpoint));
}

}  // namespace espalier
