#include "server/recordings/spool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/sha256.h"
#include "base/testing/faulty_file_system.h"
#include "server/recordings/fetched_checkpoint.h"
#include "server/recordings/recording_store.h"
#include "server/store/sqlite_store.h"
#include "storage/folder_checkpoint_store.h"
#include "storage/manifest.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RememberedReports : public SpoolObserver {
 public:
  void OnSpoolFailed(const std::string& job_id, const std::string& message) override {
    Add(job_id, message);
  }
  void OnSpoolRecovered(const std::string& job_id, const std::string& message) override {
    Add(job_id, message);
  }
  void OnJobSpooled(const std::string&) override {}
  void OnSpooled(int64_t) override {}
  void OnSpoolError() override {
    absl::MutexLock lock(&mutex_);
    ++errors_;
  }
  void OnSpoolPending(int64_t checkpoints) override {
    absl::MutexLock lock(&mutex_);
    pending_ = checkpoints;
  }

  std::vector<std::string> messages() {
    absl::MutexLock lock(&mutex_);
    return messages_;
  }
  int errors() {
    absl::MutexLock lock(&mutex_);
    return errors_;
  }
  int64_t pending() {
    absl::MutexLock lock(&mutex_);
    return pending_;
  }

 private:
  void Add(const std::string& job_id, const std::string& message) {
    absl::MutexLock lock(&mutex_);
    messages_.push_back(absl::StrCat(job_id, ": ", message));
  }

  absl::Mutex mutex_;
  std::vector<std::string> messages_ ABSL_GUARDED_BY(mutex_);
  int errors_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
};

class SpoolTest : public ::testing::Test {
 protected:
  SpoolTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    auto opened = SqliteStore::Open(folder_ + "/jobs.db");
    EXPECT_TRUE(opened.ok()) << opened.status();
    jobs_ = *std::move(opened);
    recordings_ = std::make_unique<RecordingStore>(&store_, jobs_.get(), kUrl);
    PutJob("job-1", v1::RecordOptions::ADAPTIVE);
  }
  ~SpoolTest() override { spool_.reset(); }

  void PutJob(const std::string& id, v1::RecordOptions::Mode mode) {
    JobWrite write;
    write.create = true;
    write.job.emplace();
    v1::Job& job = write.job->job;
    job.set_id(id);
    job.set_attempts(1);
    job.set_checkpoint_step(1000);
    job.mutable_spec()->mutable_record()->set_mode(mode);
    ASSERT_EQ(jobs_->Write(id, write), absl::OkStatus());
    v1::RecordedAttempt attempt;
    attempt.set_attempt(1);
    ASSERT_EQ(recordings_->PutAttempt(id, attempt), absl::OkStatus());
  }
  static std::string Directory(int64_t steps) {
    return absl::StrCat("attempt-1/step-", steps, "-attempt-1");
  }
  void PutCheckpoint(const std::string& job, int64_t steps, int ranks = 1) {
    const std::string folder = JoinPath(job, Directory(steps));
    Manifest manifest;
    manifest.job_id = job;
    manifest.steps_done = steps;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string content = absl::StrCat(job, " ", steps, std::string(10000, 'x'), rank);
      manifest.files.push_back({absl::StrCat("rank-", rank, ".safetensors"), Sha256Hex(content),
                                static_cast<int64_t>(content.size()), false});
      ASSERT_EQ(store_.PutIfAbsent(PathOf(folder, manifest.files.back()), content),
                absl::OkStatus());
    }
    ASSERT_EQ(WriteManifest(store_, folder, manifest), absl::OkStatus());
    if (spool_ != nullptr) spool_->Changed(job);
  }
  void StartSpool() {
    spool_ = std::make_unique<Spool>(
        SpoolOptions{.url = kUrl,
                     .store = &store_,
                     .spool = &copies_,
                     .jobs = jobs_.get(),
                     .index = &recordings_->copies(),
                     .observer = &reports_,
                     .check = [this] { return present_ ? absl::OkStatus() : kAway; },
                     .first_retry = absl::Milliseconds(5),
                     .longest_retry = absl::Milliseconds(20)});
    spool_->Start();
  }
  // Steps of the checkpoints that have copies, as the job store says.
  std::vector<int64_t> Spooled(const std::string& job) {
    std::vector<int64_t> steps;
    const auto copies = recordings_->copies().CopiesOf(job);
    EXPECT_TRUE(copies.ok()) << copies.status();
    for (const auto& copy : *copies) steps.push_back(copy.steps_done());
    std::sort(steps.begin(), steps.end());
    return steps;
  }
  template <typename Condition>
  static bool Eventually(Condition condition) {
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (!condition() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(2));
    return condition();
  }
  FetchTools tools() { return {&store_, spool_.get(), recordings_.get()}; }
  absl::StatusOr<FetchedCheckpoint> Fetch(int64_t steps) {
    return FetchedCheckpoint::Open(tools(), "job-1", Directory(steps), "replay-1/2", nullptr);
  }

  absl::Status Restore(int64_t steps) {
    return RestoreCheckpoint(tools(), "job-1", Directory(steps), "replay-1/2", nullptr);
  }

  static constexpr char kUrl[] = "s3://bucket/spool";
  const absl::Status kAway = absl::UnavailableError("the disk is not mounted");
  const std::string folder_ = ::testing::TempDir() + "/spool_test";
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  FaultyFileSystem faulty_{NewPosixFileSystem()};
  FolderCheckpointStore store_{*files_, folder_ + "/store"};
  FolderCheckpointStore copies_{faulty_, folder_ + "/copies"};
  std::unique_ptr<SqliteStore> jobs_;
  std::unique_ptr<RecordingStore> recordings_;
  RememberedReports reports_;
  std::atomic<bool> present_{true};
  std::unique_ptr<Spool> spool_;
};

TEST_F(SpoolTest, CopiesWhatRecordedJobsHaveAndGet) {
  PutJob("job-2", v1::RecordOptions::OFF);
  PutCheckpoint("job-1", 10);
  PutCheckpoint("job-2", 10);
  StartSpool();
  ASSERT_TRUE(Eventually([&] { return Spooled("job-1").size() == 1; }));
  PutCheckpoint("job-1", 20);
  PutCheckpoint("job-2", 20);
  ASSERT_TRUE(Eventually([&] { return Spooled("job-1").size() == 2; }));
  EXPECT_TRUE(Eventually([&] { return reports_.pending() == 0; }));
  spool_->Stop();
  EXPECT_THAT(Spooled("job-1"), ElementsAre(10, 20));
  EXPECT_THAT(*copies_.List("job-2"), IsEmpty());
  EXPECT_THAT(reports_.messages(), IsEmpty());
  EXPECT_EQ(reports_.errors(), 0);
}

TEST_F(SpoolTest, GoesOnAfterAnOutageAndSaysSoOnce) {
  PutCheckpoint("job-1", 10);
  present_ = false;
  StartSpool();
  ASSERT_TRUE(Eventually([&] { return reports_.errors() > 3; }));
  PutCheckpoint("job-1", 20);
  const int errors = reports_.errors();
  ASSERT_TRUE(Eventually([&] { return reports_.errors() > errors + 1; }));
  EXPECT_EQ(reports_.pending(), 2);
  ASSERT_EQ(reports_.messages().size(), 1u);
  EXPECT_THAT(reports_.messages()[0], HasSubstr("the disk is not mounted; training goes on"));
  present_ = true;
  ASSERT_TRUE(Eventually([&] { return reports_.messages().size() == 2; }));
  EXPECT_THAT(reports_.messages()[1], HasSubstr("all checkpoints are copied"));
  EXPECT_THAT(Spooled("job-1"), ElementsAre(10, 20));
}

TEST_F(SpoolTest, AFullDiskHasPartsThatAreNoCheckpoints) {
  PutCheckpoint("job-1", 10);
  faulty_.set_free_bytes(20);
  StartSpool();
  ASSERT_TRUE(Eventually([&] { return reports_.errors() > 1; }));
  EXPECT_THAT(Spooled("job-1"), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(ReadManifest(copies_, "job-1/" + Directory(10)).status()));
  EXPECT_THAT(reports_.messages()[0], HasSubstr("No space left"));
  faulty_.set_free_bytes(1 << 30);
  ASSERT_TRUE(Eventually([&] { return Spooled("job-1").size() == 1; }));
}

TEST_F(SpoolTest, ADamagedCheckpointIsNamedAndTheOthersAreCopied) {
  PutCheckpoint("job-1", 10);
  PutCheckpoint("job-1", 20);
  std::fstream file(folder_ + "/store/job-1/" + Directory(10) + "/rank-0.safetensors");
  file.put('?');
  file.close();
  StartSpool();
  ASSERT_TRUE(Eventually([&] { return Spooled("job-1").size() == 1; }));
  EXPECT_THAT(Spooled("job-1"), ElementsAre(20));
  ASSERT_EQ(reports_.messages().size(), 1u);
  EXPECT_THAT(reports_.messages()[0], HasSubstr("step 10 is not copied"));
  EXPECT_THAT(reports_.messages()[0], HasSubstr("rank-0.safetensors"));
}

TEST_F(SpoolTest, CopiesStayUntilTheJobIsDeleted) {
  for (const int64_t steps : {10, 20, 30}) PutCheckpoint("job-1", steps);
  StartSpool();
  ASSERT_TRUE(Eventually([&] { return Spooled("job-1").size() == 3; }));
  ASSERT_EQ(store_.Delete("job-1/" + Directory(10)), absl::OkStatus());
  const absl::StatusOr<v1::Recording> recording = recordings_->Load("job-1");
  ASSERT_TRUE(recording.ok()) << recording.status();
  ASSERT_EQ(recording->checkpoints_size(), 3);
  EXPECT_FALSE(recording->checkpoints(0).stored());
  EXPECT_TRUE(recording->checkpoints(0).spooled());
  EXPECT_EQ(recording->checkpoints(0).spool(), kUrl);
  EXPECT_TRUE(recording->checkpoints(1).stored());
  EXPECT_TRUE(recording->checkpoints(1).spooled());

  // The spool is away meanwhile, and the coordinator is restarted.
  present_ = false;
  spool_.reset();
  ASSERT_EQ(store_.Delete("job-1"), absl::OkStatus());
  ASSERT_EQ(recordings_->RemoveFacts("job-1", 1), absl::OkStatus());
  StartSpool();
  ASSERT_TRUE(Eventually([&] { return reports_.errors() > 1; }));
  EXPECT_FALSE(copies_.List("job-1")->empty());
  present_ = true;
  EXPECT_TRUE(Eventually([&] { return copies_.List("job-1")->empty(); }));
  EXPECT_TRUE(Eventually([&] { return recordings_->copies().DeletedOf(kUrl)->empty(); }));
}

TEST_F(SpoolTest, ACopyUnderWayOfADeletedJobGoes) {
  faulty_.Hold("rank-0.safetensors");
  StartSpool();
  PutCheckpoint("job-1", 10);
  ASSERT_TRUE(Eventually([&] { return faulty_.held() == 1; }));
  ASSERT_EQ(recordings_->RemoveFacts("job-1", 1), absl::OkStatus());
  spool_->RemoveDeleted();
  faulty_.Release();
  EXPECT_TRUE(Eventually([&] { return recordings_->copies().DeletedOf(kUrl)->empty(); }));
  EXPECT_THAT(*copies_.List("job-1"), IsEmpty());
  EXPECT_THAT(Spooled("job-1"), IsEmpty());
}

TEST_F(SpoolTest, AReplayReadsACopyWhereTheCheckpointIsGone) {
  for (const int64_t steps : {10, 20}) PutCheckpoint("job-1", steps);
  StartSpool();
  ASSERT_TRUE(Eventually([&] { return Spooled("job-1").size() == 2; }));
  const std::string name = "job-1/" + Directory(10);
  const std::string content = *ReadObject(store_, name + "/rank-0.safetensors", 1 << 20);
  ASSERT_EQ(store_.Delete(name), absl::OkStatus());
  {
    const absl::StatusOr<FetchedCheckpoint> there = Fetch(20);
    ASSERT_TRUE(there.ok()) << there.status();
    EXPECT_EQ(there->folder(), "job-1/" + Directory(20));
    const absl::StatusOr<FetchedCheckpoint> fetched = Fetch(10);
    ASSERT_TRUE(fetched.ok()) << fetched.status();
    EXPECT_EQ(*ReadObject(store_, fetched->folder() + "/rank-0.safetensors", 1 << 20), content);
    EXPECT_EQ(ReadManifest(store_, fetched->folder())->steps_done, 10);
    // It is no checkpoint to go on from.
    EXPECT_EQ(ListStoredCheckpoints(store_, "job-1")->checkpoints.size(), 1u);
  }
  EXPECT_THAT(*store_.List("job-1/fetched"), IsEmpty());
  EXPECT_EQ(ListStoredCheckpoints(store_, "job-1")->checkpoints.size(), 1u);

  absl::Status status = Fetch(30).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("not there any more"));
  spool_.reset();
  status = Fetch(10).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("--spool=s3://bucket/spool"));
}

TEST_F(SpoolTest, ADamagedCheckpointIsReplacedOnceItsCopyCanBeRead) {
  PutCheckpoint("job-1", 10);
  StartSpool();
  ASSERT_TRUE(Eventually([&] { return Spooled("job-1").size() == 1; }));
  const std::string folder = "job-1/" + Directory(10);
  const std::string content = *ReadObject(store_, folder + "/rank-0.safetensors", 1 << 20);
  std::filesystem::resize_file(folder_ + "/store/" + folder + "/rank-0.safetensors", 5);
  present_ = false;
  absl::Status status = Restore(10);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(ReadManifest(store_, folder).ok()) << "it names what is damaged";
  present_ = true;
  EXPECT_EQ(Restore(10), absl::OkStatus());
  EXPECT_EQ(*ReadObject(store_, folder + "/rank-0.safetensors", 1 << 20), content);
  EXPECT_TRUE(absl::IsNotFound(Restore(20)));
}

TEST_F(SpoolTest, ADamagedCopyTakesNothingOfADamagedCheckpoint) {
  PutCheckpoint("job-1", 10, /*ranks=*/3);
  StartSpool();
  ASSERT_TRUE(Eventually([&] { return Spooled("job-1").size() == 1; }));
  const std::string folder = "job-1/" + Directory(10);
  const auto content = [&](int rank) {
    return ReadObject(store_, absl::StrCat(folder, "/rank-", rank, ".safetensors"), 1 << 20)
        .value_or("");
  };
  const std::string before[] = {content(0), content(1), content(2)};
  std::filesystem::resize_file(folder_ + "/store/" + folder + "/rank-0.safetensors", 5000);
  std::filesystem::remove(folder_ + "/store/" + folder + "/rank-1.safetensors");
  // The copies of the damaged files are sound: others may not be.
  const std::string copy = folder_ + "/copies/" + folder + "/rank-2.safetensors.zst";
  const auto size = std::filesystem::file_size(copy);
  std::filesystem::resize_file(copy, size - 1);
  const absl::Status status = Restore(10);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("its copy in s3://bucket/spool is damaged, too: "));
  EXPECT_THAT(status.message(), HasSubstr("rank-2.safetensors.zst' is damaged: it cannot be"));
  EXPECT_TRUE(ReadManifest(store_, folder).ok());
  EXPECT_EQ(content(0), before[0].substr(0, 5000));
  EXPECT_EQ(content(2), before[2]);
  EXPECT_THAT(*store_.List("job-1/fetched"), IsEmpty());
  // Nor does it count as a copy.
  v1::Recording run = *recordings_->Load("job-1");
  EXPECT_EQ(run.copied_checkpoints(), 0);
  ASSERT_EQ(run.checkpoints_size(), 1);
  EXPECT_TRUE(run.checkpoints(0).stored());
  EXPECT_FALSE(run.checkpoints(0).spooled());
  EXPECT_EQ(run.checkpoints(0).spool(), kUrl);

  std::filesystem::remove(copy);
  EXPECT_THAT(Restore(10).message(), HasSubstr("is lost, too: "));
  EXPECT_EQ(content(2), before[2]);

  // Once there is a sound copy, what is damaged is replaced, and nothing else is written.
  ASSERT_EQ(copies_.PutIfAbsent(folder + "/rank-2.safetensors", before[2]), absl::OkStatus());
  const std::string sound = folder_ + "/store/" + folder + "/rank-2.safetensors";
  const auto written = std::filesystem::last_write_time(sound);
  EXPECT_EQ(Restore(10), absl::OkStatus());
  for (const int rank : {0, 1, 2}) EXPECT_EQ(content(rank), before[rank]) << rank;
  EXPECT_EQ(std::filesystem::last_write_time(sound), written);
  EXPECT_EQ(recordings_->Load("job-1")->copied_checkpoints(), 1);
  EXPECT_THAT(*store_.List("job-1/fetched"), IsEmpty());
}

}  // namespace
}  // namespace espalier
