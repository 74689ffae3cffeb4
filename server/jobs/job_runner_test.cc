#include "server/jobs/job_runner.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "server/store/sqlite_store.h"
#include "storage/folder_checkpoint_store.h"

namespace espalier {
namespace {

// A coordinator's jobs without workers: its only job stays queued.
class JobRunnerTest : public ::testing::Test {
 protected:
  JobRunnerTest() : folder_(::testing::TempDir() + "/job_runner") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    auto store = SqliteStore::Open(folder_ + "/jobs.db");
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    JobWrite write;
    write.create = true;
    write.job.emplace();
    write.job->job.set_id(kJob);
    write.job->job.set_state(v1::QUEUED);
    EXPECT_EQ(store_->Write(kJob, write), absl::OkStatus());
    Restart();
  }
  void Restart() {
    runner_.reset();
    AttemptTools tools;
    tools.workers = &workers_;
    tools.files = files_.get();
    tools.checkpoints = &checkpoints_;
    tools.data_folder = &data_folder_;
    runner_ =
        std::make_unique<JobRunner>(JobRunnerOptions{.input_folder = folder_ + "/checkpoints"},
                                    tools, store_.get(), &clock_, &metrics_);
    EXPECT_EQ(runner_->Start(), absl::OkStatus());
  }
  void Report(int64_t step, const std::string& tensor) {
    v1::StepReport report;
    report.set_step(step);
    (*report.mutable_values())["loss"] = static_cast<double>(step);
    (*report.mutable_tensors())["probe"].set_data(tensor);
    AttemptObserver& observer = *runner_;
    observer.OnStep(kJob, 0, report);
  }
  std::vector<v1::StepReport> Stored() {
    const auto log = store_->Log(kJob, 0, 0, 100);
    EXPECT_TRUE(log.ok()) << log.status();
    std::vector<v1::StepReport> reports;
    for (const JobLogEntry& entry : *log) reports.push_back(std::get<v1::StepReport>(entry.entry));
    return reports;
  }
  void AwaitStored(size_t reports) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (Stored().size() < reports && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    ASSERT_EQ(Stored().size(), reports);
  }
  std::vector<v1::StepReport> Watched() {
    v1::WatchRequest request;
    request.set_job_id(kJob);
    request.set_no_follow(true);
    std::vector<v1::StepReport> reports;
    const absl::Status status = runner_->Watch(
        request,
        [&](const v1::JobEvent& event) {
          if (event.has_step()) reports.push_back(event.step());
          return true;
        },
        [] { return false; });
    EXPECT_EQ(status, absl::OkStatus());
    return reports;
  }

  static constexpr char kJob[] = "job-1";
  const std::string folder_;
  SystemClock clock_;
  Metrics metrics_;
  WorkerRegistry workers_{&clock_, absl::Seconds(10), [] { return absl::StatusOr<uint64_t>(1); }};
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  FolderCheckpointStore data_folder_{*files_, folder_};
  FolderCheckpointStore checkpoints_{*files_, folder_ + "/checkpoints"};
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<JobRunner> runner_;
};

TEST_F(JobRunnerTest, WatchersGetRecentTensorsAndTheStoreHasNone) {
  Report(0, "zero");
  Report(1, "one");
  AwaitStored(2);
  for (const v1::StepReport& report : Stored()) EXPECT_EQ(report.tensors_size(), 0);

  std::vector<v1::StepReport> watched = Watched();
  ASSERT_EQ(watched.size(), 2u);
  EXPECT_EQ(watched[1].tensors().at("probe").data(), "one");
  EXPECT_DOUBLE_EQ(watched[1].values().at("loss"), 1);

  v1::GetJobRequest request;
  request.set_job_id(kJob);
  request.set_with_reports(true);
  v1::GetJobReply reply;
  ASSERT_EQ(runner_->Get(request, &reply), absl::OkStatus());
  ASSERT_EQ(reply.reports_size(), 2);
  EXPECT_EQ(reply.reports(1).tensors_size(), 0);

  Restart();
  watched = Watched();
  ASSERT_EQ(watched.size(), 2u);
  EXPECT_EQ(watched[1].tensors_size(), 0);
  EXPECT_DOUBLE_EQ(watched[1].values().at("loss"), 1);
}

}  // namespace
}  // namespace espalier
