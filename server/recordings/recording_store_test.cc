#include "server/recordings/recording_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "server/store/sqlite_store.h"
#include "storage/folder_checkpoint_store.h"
#include "storage/manifest.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::RecordedAttempt Attempt(int32_t number, int64_t first_step) {
  v1::RecordedAttempt attempt;
  attempt.set_attempt(number);
  attempt.set_first_step(first_step);
  return attempt;
}

std::vector<int32_t> Numbers(const std::vector<v1::RecordedAttempt>& attempts) {
  std::vector<int32_t> numbers;
  for (const v1::RecordedAttempt& attempt : attempts) numbers.push_back(attempt.attempt());
  return numbers;
}

TEST(AttemptsOfStepsTest, AStepIsOfTheLastAttemptThatTrainedIt) {
  EXPECT_THAT(AttemptsOfSteps({}), IsEmpty());
  EXPECT_THAT(Numbers(AttemptsOfSteps({Attempt(1, 0), Attempt(2, 60), Attempt(4, 80)})),
              ElementsAre(1, 2, 4));
  // The third went back to before the second.
  EXPECT_THAT(Numbers(AttemptsOfSteps({Attempt(1, 0), Attempt(2, 60), Attempt(3, 40)})),
              ElementsAre(1, 3));
  EXPECT_THAT(Numbers(AttemptsOfSteps({Attempt(1, 0), Attempt(2, 60), Attempt(3, 60)})),
              ElementsAre(1, 3));
  EXPECT_THAT(Numbers(AttemptsOfSteps({Attempt(1, 0), Attempt(2, 60), Attempt(3, 0)})),
              ElementsAre(3));
}

TEST(BelongsToRecordingTest, NotWhatTheJobWentBackTo) {
  const std::vector<v1::RecordedAttempt> attempts = {Attempt(1, 0), Attempt(2, 60), Attempt(3, 40)};
  EXPECT_TRUE(BelongsToRecording(1, 40, attempts, 100));
  EXPECT_FALSE(BelongsToRecording(1, 60, attempts, 100));
  EXPECT_FALSE(BelongsToRecording(2, 80, attempts, 100));
  EXPECT_TRUE(BelongsToRecording(3, 80, attempts, 100));
  // Its manifest is durable, but the job's record does not know it.
  EXPECT_FALSE(BelongsToRecording(3, 120, attempts, 100));
  // Of a version that recorded nothing.
  EXPECT_TRUE(BelongsToRecording(1, 20, {Attempt(2, 20)}, 20));
}

class RecordingStoreTest : public ::testing::Test {
 protected:
  RecordingStoreTest() : folder_(::testing::TempDir() + "/recording_store") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    Reopen();
  }
  void Reopen() {
    jobs_.reset();
    auto opened = SqliteStore::Open(folder_ + "/jobs.db");
    EXPECT_TRUE(opened.ok()) << opened.status();
    jobs_ = *std::move(opened);
    recordings_ = std::make_unique<RecordingStore>(&checkpoints_, jobs_.get());
  }
  void PutJob(v1::RecordOptions::Mode mode, int64_t checkpoint_step) {
    JobWrite write;
    write.create = true;
    write.job.emplace();
    v1::Job& job = write.job->job;
    job.set_id("job-1");
    job.set_experiment("lm");
    job.set_version(3);
    job.set_attempts(3);
    job.set_checkpoint_step(checkpoint_step);
    job.mutable_spec()->mutable_record()->set_mode(mode);
    job.mutable_spec()->mutable_graph()->add_nodes()->set_name("dense");
    EXPECT_EQ(jobs_->Write("job-1", write), absl::OkStatus());
  }
  void PutCheckpoint(const std::string& directory, int64_t steps_done) {
    const std::string folder = "job-1/" + directory;
    EXPECT_EQ(checkpoints_.PutIfAbsent(folder + "/rank-0.safetensors", "0123456789"),
              absl::OkStatus());
    Manifest manifest;
    manifest.job_id = "job-1";
    manifest.steps_done = steps_done;
    manifest.files = {{"rank-0.safetensors", "", 10}};
    EXPECT_EQ(WriteManifest(checkpoints_, folder, manifest), absl::OkStatus());
  }

  const std::string folder_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  FolderCheckpointStore checkpoints_{*files_, folder_ + "/checkpoints"};
  std::unique_ptr<SqliteStore> jobs_;
  std::unique_ptr<RecordingStore> recordings_;
};

TEST_F(RecordingStoreTest, ARecordingSurvivesARestartAndGoesWithItsJob) {
  PutJob(v1::RecordOptions::EVERY, 60);
  EXPECT_TRUE(absl::IsNotFound(recordings_->Digests("job-1").status()));
  ASSERT_EQ(recordings_->PutAttempt("job-1", Attempt(1, 0)), absl::OkStatus());
  ASSERT_EQ(recordings_->PutAttempt("job-1", Attempt(3, 40)), absl::OkStatus());
  ASSERT_EQ(recordings_->PutDigests("job-1", {"g", "d", "v"}), absl::OkStatus());
  PutCheckpoint("attempt-1/step-20-attempt-1", 20);
  PutCheckpoint("attempt-1/step-40-attempt-1", 40);
  PutCheckpoint("attempt-1/step-60-attempt-1", 60);  // the job went back to step 40
  PutCheckpoint("attempt-3/of-another-name", 60);
  EXPECT_EQ(checkpoints_.PutIfAbsent("job-1/attempt-3/step-80-attempt-3/rank-0.safetensors", "0"),
            absl::OkStatus());  // incomplete
  EXPECT_EQ(checkpoints_.PutIfAbsent("job-1/stream/0-1.npz", "0"), absl::OkStatus());
  Reopen();
  absl::StatusOr<v1::Recording> recording = recordings_->Load("job-1");
  ASSERT_TRUE(recording.ok()) << recording.status();
  EXPECT_EQ(recording->experiment(), "lm");
  EXPECT_EQ(recording->version(), 3);
  EXPECT_FALSE(recording->job().spec().has_graph());
  EXPECT_EQ(recording->graph_sha256(), "g");
  EXPECT_EQ(recording->dataset_sha256(), "d");
  EXPECT_EQ(recording->validation_sha256(), "v");
  ASSERT_EQ(recording->attempts_size(), 2);
  EXPECT_EQ(recording->attempts(1).attempt(), 3);
  std::vector<std::string> directories;
  for (const v1::RecordedCheckpoint& checkpoint : recording->checkpoints()) {
    directories.push_back(checkpoint.directory());
    EXPECT_TRUE(checkpoint.stored());
    EXPECT_GT(checkpoint.bytes(), 10);
  }
  EXPECT_THAT(directories, ElementsAre("attempt-1/step-20-attempt-1", "attempt-1/step-40-attempt-1",
                                       "attempt-3/of-another-name"));
  EXPECT_EQ(recording->checkpoints(2).steps_done(), 60);
  EXPECT_EQ(recording->job().recorded_checkpoints(), 3);

  // What was removed by hand does not count, whatever the job's record says.
  std::filesystem::remove_all(folder_ + "/checkpoints/job-1/attempt-1/step-20-attempt-1");
  recording = recordings_->Load("job-1");
  ASSERT_TRUE(recording.ok()) << recording.status();
  EXPECT_EQ(recording->checkpoints_size(), 2);
  EXPECT_EQ(recording->job().recorded_checkpoints(), 2);
  EXPECT_EQ(recording->job().recorded_bytes(),
            recording->checkpoints(0).bytes() + recording->checkpoints(1).bytes());

  ASSERT_EQ(recordings_->RemoveFacts("job-1", 3), absl::OkStatus());
  recording = recordings_->Load("job-1");
  ASSERT_TRUE(recording.ok()) << recording.status();
  EXPECT_EQ(recording->attempts_size(), 0);
  EXPECT_EQ(recording->graph_sha256(), "");
  EXPECT_TRUE(absl::IsNotFound(recordings_->Load("job-2").status()));
}

TEST_F(RecordingStoreTest, AJobThatIsNotRecordedHasNoCheckpoints) {
  PutJob(v1::RecordOptions::OFF, 60);
  PutCheckpoint("attempt-1/step-60-attempt-1", 60);
  const absl::StatusOr<v1::Recording> recording = recordings_->Load("job-1");
  ASSERT_TRUE(recording.ok()) << recording.status();
  EXPECT_EQ(recording->version(), 3);
  EXPECT_EQ(recording->checkpoints_size(), 0);
}

}  // namespace
}  // namespace espalier
