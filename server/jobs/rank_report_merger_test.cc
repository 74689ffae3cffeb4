#include "server/jobs/rank_report_merger.h"

#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

v1::StepReport Report(int64_t step, double loss, double rate, double seconds) {
  v1::StepReport report;
  report.set_step(step);
  report.set_seconds(seconds);
  (*report.mutable_values())["loss"] = loss;
  (*report.mutable_values())["learning_rate"] = rate;
  return report;
}

constexpr char kRoot[] = "job-1";

v1::CheckpointShard Shard(int64_t steps, const std::string& directory, const std::string& file) {
  v1::CheckpointShard shard;
  shard.set_steps_done(steps);
  shard.set_directory(absl::StrContains(directory, '/') ? directory
                                                        : absl::StrCat(kRoot, "/", directory));
  shard.set_file(file);
  shard.set_sha256("s");
  shard.set_bytes(4);
  return shard;
}

TEST(RankReportMerger, StepCompletesWithLastRankAndSumsValues) {
  RankReportMerger merge(2, kRoot);
  EXPECT_FALSE(merge.AddStep(1, Report(0, 1.5, 0.1, 2))->has_value());
  EXPECT_FALSE(merge.AddStep(1, Report(1, 1, 0.1, 1))->has_value()) << "rank 1 is a step ahead";
  auto merged = *merge.AddStep(0, Report(0, 0.5, 0.1, 3));
  ASSERT_TRUE(merged.has_value());
  EXPECT_EQ(merged->step(), 0);
  EXPECT_DOUBLE_EQ(merged->values().at("loss"), 2.0);
  EXPECT_DOUBLE_EQ(merged->values().at("learning_rate"), 0.1);
  EXPECT_DOUBLE_EQ(merged->seconds(), 3);
  EXPECT_EQ((*merge.AddStep(0, Report(1, 1, 0.1, 1)))->step(), 1);
}

TEST(RankReportMerger, FinishesAreAppliedToTheMergedValue) {
  RankReportMerger merge(2, kRoot);
  merge.SetFinishes({{"loss", [](double mean) { return std::sqrt(mean); }}});
  EXPECT_FALSE(merge.AddStep(0, Report(0, 7, 0.25, 1))->has_value());
  auto merged = *merge.AddStep(1, Report(0, 9, 0.25, 1));
  ASSERT_TRUE(merged.has_value());
  EXPECT_DOUBLE_EQ(merged->values().at("loss"), 4) << "the root of the sum, not the sum of roots";
  EXPECT_DOUBLE_EQ(merged->values().at("learning_rate"), 0.25);
  EXPECT_FALSE(merge.AddEvaluation(0, Report(0, 5, 0, 1)).has_value());
  EXPECT_DOUBLE_EQ(merge.AddEvaluation(1, Report(0, 20, 0, 1))->values().at("loss"), 5);
}

TEST(RankReportMerger, EachEvaluationIsMergedAlone) {
  RankReportMerger merge(2, kRoot);
  EXPECT_FALSE(merge.AddEvaluation(0, Report(10, 1, 0, 1)).has_value());
  EXPECT_DOUBLE_EQ(merge.AddEvaluation(1, Report(10, 2, 0, 1))->values().at("loss"), 3);
  EXPECT_FALSE(merge.AddEvaluation(1, Report(20, 4, 0, 1)).has_value()) << "rank 0's is of step 10";
  const auto merged = merge.AddEvaluation(0, Report(20, 5, 0, 1));
  ASSERT_TRUE(merged.has_value());
  EXPECT_EQ(merged->step(), 20);
  EXPECT_DOUBLE_EQ(merged->values().at("loss"), 9);
}

TEST(RankReportMerger, LowestRankThatAttachedATensorCounts) {
  RankReportMerger merge(2, kRoot);
  v1::StepReport first = Report(0, 1, 0.1, 1);
  v1::StepReport second = first;
  (*first.mutable_tensors())["probe"].set_data("zero");
  (*second.mutable_tensors())["probe"].set_data("one");
  (*second.mutable_tensors())["second stage"].set_data("one");
  EXPECT_FALSE(merge.AddStep(1, second)->has_value());
  auto merged = *merge.AddStep(0, first);
  ASSERT_TRUE(merged.has_value());
  ASSERT_EQ(merged->tensors_size(), 2);
  EXPECT_EQ(merged->tensors().at("probe").data(), "zero");
  EXPECT_EQ(merged->tensors().at("second stage").data(), "one");
}

TEST(RankReportMerger, TensorsOverTheLimitAreRefusedWithARemedy) {
  RankReportMerger merge(2, kRoot);
  const auto with = [](int64_t step, const std::string& name, int64_t bytes) {
    v1::StepReport report = Report(step, 1, 0.1, 1);
    (*report.mutable_tensors())[name].set_data(std::string(static_cast<size_t>(bytes), 'x'));
    return report;
  };
  const auto too_large = merge.AddStep(0, with(3, "a", kMaxStepTensorBytes));
  EXPECT_EQ(too_large.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(too_large.status().message().find("smaller or fewer"), std::string::npos)
      << too_large.status();
  // Each rank's fit, but not both together.
  EXPECT_TRUE(merge.AddStep(0, with(4, "a", kMaxStepTensorBytes / 2)).ok());
  EXPECT_FALSE(merge.AddStep(1, with(4, "b", kMaxStepTensorBytes / 2)).ok());
  // Steps are counted alone.
  EXPECT_TRUE(merge.AddStep(0, with(5, "a", kMaxStepTensorBytes / 2)).ok());
}

TEST(RankReportMerger, ACheckpointIsCompleteWithTheLastShard) {
  RankReportMerger merge(3, kRoot);
  EXPECT_FALSE(merge.AddShard(2, Shard(10, "d", "c"))->has_value());
  EXPECT_FALSE(merge.AddShard(2, Shard(10, "d", "c"))->has_value()) << "the same rank again";
  EXPECT_FALSE(merge.AddShard(0, Shard(10, "d", "a"))->has_value());
  auto complete = merge.AddShard(1, Shard(10, "d", ""));
  ASSERT_TRUE(complete.ok() && complete->has_value());
  EXPECT_EQ((*complete)->directory, absl::StrCat(kRoot, "/d"));
  ASSERT_EQ((*complete)->files.size(), 2u) << "rank 1 has no parameters";
  EXPECT_EQ((*complete)->files[0].name, "a");
  EXPECT_EQ((*complete)->files[1].name, "c");
}

TEST(RankReportMerger, ACheckpointHasTheFilesThatItShares) {
  RankReportMerger merge(2, kRoot);
  v1::CheckpointShard shard = Shard(10, "d", "a");
  shard.mutable_unchanged()->set_file("unchanged-rank-0");
  shard.mutable_unchanged()->set_sha256("77");
  shard.mutable_unchanged()->set_bytes(5);
  EXPECT_FALSE(merge.AddShard(0, shard)->has_value());
  const auto complete = *merge.AddShard(1, Shard(10, "d", "b"));
  ASSERT_TRUE(complete.has_value());
  ASSERT_EQ(complete->files.size(), 3u);
  EXPECT_FALSE(complete->files[0].shared);
  EXPECT_TRUE(complete->files[1].shared);
  EXPECT_EQ(complete->files[1].name, "unchanged-rank-0");
  EXPECT_EQ(complete->files[1].sha256, "77");
  EXPECT_EQ(complete->files[1].bytes, 5);
  EXPECT_FALSE(complete->files[2].shared);
  for (const char* file : {"../x", "../../job-2/x", "/etc/x", ".."}) {
    shard.mutable_unchanged()->set_file(file);
    EXPECT_EQ(merge.AddShard(0, shard).status().code(), absl::StatusCode::kPermissionDenied)
        << file;
  }
}

// A plan may use fewer workers than the job has. The others run through all steps at once.
TEST(RankReportMerger, ACheckpointDoesNotWaitForRanksThatSaveNothing) {
  RankReportMerger merge(3, kRoot);
  merge.SetSavingRanks({0, 2});
  EXPECT_FALSE(merge.AddShard(1, Shard(1000, "e", ""))->has_value());
  EXPECT_FALSE(merge.AddShard(0, Shard(10, "d", "a"))->has_value());
  const auto complete = merge.AddShard(2, Shard(10, "d", "c"));
  ASSERT_TRUE(complete.ok() && complete->has_value());
  EXPECT_EQ((*complete)->files.size(), 2u);
}

TEST(RankReportMerger, ACheckpointCostsWhatTheSlowestRankPays) {
  RankReportMerger merge(2, kRoot);
  v1::CheckpointShard first = Shard(10, "d", "a"), second = Shard(10, "d", "b");
  first.set_stall_seconds(0.5);
  first.set_write_seconds(1);
  second.set_stall_seconds(0.25);
  second.set_write_seconds(3);
  EXPECT_FALSE(merge.AddShard(0, first)->has_value());
  const auto complete = *merge.AddShard(1, second);
  ASSERT_TRUE(complete.has_value());
  EXPECT_DOUBLE_EQ(complete->stall_seconds, 0.5);
  EXPECT_DOUBLE_EQ(complete->write_seconds, 3);
}

TEST(RankReportMerger, AShardThatFoundNoRoomSkipsTheCheckpoint) {
  RankReportMerger merge(2, kRoot);
  v1::CheckpointShard full = Shard(10, "d", "");
  full.set_not_written("the disk is full");
  EXPECT_FALSE(merge.AddShard(1, full)->has_value()) << "rank 0 may still be writing";
  const auto skipped = merge.AddShard(0, Shard(10, "d", "a"));
  ASSERT_TRUE(skipped.ok() && skipped->has_value());
  EXPECT_EQ((*skipped)->not_written, "the disk is full");
  ASSERT_FALSE(merge.AddShard(0, Shard(10, "d", "a"))->has_value()) << "it may be tried again";
  const auto written = merge.AddShard(1, Shard(10, "d", "b"));
  ASSERT_TRUE(written.ok() && written->has_value());
  EXPECT_EQ((*written)->not_written, "");
}

TEST(RankReportMerger, ShardsOfDifferentFoldersAreNoCheckpoint) {
  RankReportMerger merge(2, kRoot);
  ASSERT_TRUE(merge.AddShard(0, Shard(10, "d", "a")).ok());
  EXPECT_FALSE(merge.AddShard(1, Shard(10, "e", "b")).ok());
}

// The coordinator would write a manifest there, and read what it finds.
TEST(RankReportMerger, FoldersThatAreNotTheJobsAreRefused) {
  RankReportMerger merge(1, kRoot);
  for (const char* folder :
       {"/etc", "/job-1/d", "job-1/", "job-12/d", "../job-1/d", "job-1/../job-2/d"}) {
    EXPECT_EQ(merge.AddShard(0, Shard(10, folder, "a")).status().code(),
              absl::StatusCode::kPermissionDenied)
        << folder;
  }
  EXPECT_TRUE(merge.AddShard(0, Shard(10, "job-1/attempt-1/step-10", "a")).ok());
}

}  // namespace
}  // namespace espalier
