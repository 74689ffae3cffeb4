#include "server/store/sqlite_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "server/store/idempotency.h"
#include "server/store/sqlite.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "/store_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".db";
    for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path_ + suffix);
    Reopen();
  }
  void Reopen(SqliteStore::Options options = {}) {
    store_.reset();
    auto opened = SqliteStore::Open(path_, options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  JobWrite Create(const std::string& id) {
    JobWrite write;
    write.create = true;
    write.job.emplace();
    write.job->job.set_id(id);
    write.job->job.set_state(v1::QUEUED);
    write.job->job.mutable_spec()->set_name("n");
    write.job->job.mutable_spec()->mutable_graph()->set_name("g");
    return write;
  }
  static v1::StepReport Report(int64_t step, double loss) {
    v1::StepReport report;
    report.set_step(step);
    (*report.mutable_values())["loss"] = loss;
    return report;
  }
  static v1::JobMessage Message(const std::string& text,
                                v1::JobMessage::Level level = v1::JobMessage::INFO) {
    v1::JobMessage message;
    message.set_text(text);
    message.set_level(level);
    return message;
  }
  // "hello", or of another level than INFO "WARNING: hello".
  std::vector<std::string> LogOf(const std::string& id, int64_t after = 0, int64_t from = 0) {
    std::vector<std::string> lines;
    auto entries = store_->Log(id, after, from, 1000);
    EXPECT_TRUE(entries.ok()) << entries.status();
    const auto line = [](const v1::StepReport& report) {
      return std::to_string(report.step()) + ":" +
             std::to_string(static_cast<int>(report.values().at("loss")));
    };
    for (const JobLogEntry& entry : *entries) {
      if (const auto* report = std::get_if<v1::StepReport>(&entry.entry)) {
        lines.push_back(line(*report));
      } else if (const auto* validation = std::get_if<LoggedValidation>(&entry.entry)) {
        lines.push_back("val " + line(validation->report));
      } else {
        const auto& message = std::get<v1::JobMessage>(entry.entry);
        lines.push_back(message.level() == v1::JobMessage::INFO
                            ? message.text()
                            : v1::JobMessage::Level_Name(message.level()) + ": " + message.text());
      }
    }
    return lines;
  }
  // Returns what another process reads for `sql`; 0 if nothing. The store is closed.
  int64_t Number(const std::string& sql) {
    store_.reset();
    sqlite3* database = nullptr;
    EXPECT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
    int64_t number = 0;
    {
      Statement statement(database, sql);
      const absl::StatusOr<bool> row = statement.Step();
      EXPECT_TRUE(row.ok()) << row.status();
      if (row.ok() && *row) number = statement.Int(0);
    }
    EXPECT_EQ(sqlite3_close(database), SQLITE_OK);
    return number;
  }

  std::string path_;
  std::unique_ptr<SqliteStore> store_;
};

TEST_F(StoreTest, WritesSurviveReopening) {
  ASSERT_TRUE(store_->Write("j", Create("j")).ok());
  JobWrite write;
  write.job = *store_->Get("j");
  write.job->job.set_state(v1::RUNNING);
  write.job->job.mutable_plan()->set_batch_size(8);
  write.job->checkpoint_dir = "/c/1";
  write.job->attempts_without_progress = 2;
  write.job->failures = "why";
  write.with_plan = true;
  write.reports = {Report(0, 3), Report(1, 2)};
  write.messages = {Message("hello"), Message("lost", v1::JobMessage::WARNING),
                    Message("fused", v1::JobMessage::DETAIL)};
  ASSERT_TRUE(store_->Write("j", write).ok());
  Reopen();
  auto record = store_->Get("j");
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->job.state(), v1::RUNNING);
  EXPECT_EQ(record->job.spec().graph().name(), "g");
  EXPECT_EQ(record->job.plan().batch_size(), 8);
  EXPECT_EQ(record->checkpoint_dir, "/c/1");
  EXPECT_EQ(record->attempts_without_progress, 2);
  EXPECT_EQ(record->failures, "why");
  EXPECT_THAT(LogOf("j"),
              testing::ElementsAre("0:3", "1:2", "hello", "WARNING: lost", "DETAIL: fused"));
}

TEST_F(StoreTest, RollbackDropsLaterReportsAndReplayedOnesFollow) {
  ASSERT_TRUE(store_->Write("j", Create("j")).ok());
  JobWrite write;
  write.reports = {Report(0, 9), Report(1, 8), Report(2, 7)};
  ASSERT_TRUE(store_->Write("j", write).ok());
  const int64_t seen = store_->Log("j", 0, 0, 100)->back().sequence;
  JobWrite back;
  back.drop_reports_from = 1;
  back.messages = {Message("going back to step 1")};
  ASSERT_TRUE(store_->Write("j", back).ok());
  JobWrite again;
  again.reports = {Report(1, 8)};
  ASSERT_TRUE(store_->Write("j", again).ok());
  EXPECT_THAT(LogOf("j"), testing::ElementsAre("0:9", "going back to step 1", "1:8"));
  EXPECT_THAT(LogOf("j", seen), testing::ElementsAre("going back to step 1", "1:8"))
      << "a watcher that had seen step 2 must be told of the replayed step";
  EXPECT_THAT(LogOf("j", 0, 1), testing::ElementsAre("going back to step 1", "1:8"));
}

TEST_F(StoreTest, ValidationsAreLoggedAndDroppedWithTheStepsBeforeThem) {
  ASSERT_TRUE(store_->Write("j", Create("j")).ok());
  JobWrite write;
  write.reports = {Report(0, 9), Report(1, 8), Report(2, 7), Report(3, 6)};
  write.validations = {Report(1, 80), Report(3, 60)};
  ASSERT_TRUE(store_->Write("j", write).ok());
  EXPECT_THAT(LogOf("j"), testing::ElementsAre("0:9", "1:8", "val 1:80", "2:7", "3:6", "val 3:60"));
  EXPECT_THAT(LogOf("j", 0, 2), testing::ElementsAre("val 1:80", "2:7", "3:6", "val 3:60"))
      << "a watcher that has seen step 1 may not have seen its validation";
  EXPECT_THAT(LogOf("j", 0, 3), testing::ElementsAre("3:6", "val 3:60"));
  ASSERT_EQ(store_->Validations("j")->size(), 2u);
  EXPECT_EQ(store_->Validations("j")->front().step(), 1);

  // Back to a checkpoint of two steps, behind the validation after them.
  JobWrite back;
  back.drop_reports_from = 2;
  ASSERT_TRUE(store_->Write("j", back).ok());
  EXPECT_THAT(LogOf("j"), testing::ElementsAre("0:9", "1:8", "val 1:80"));
  JobWrite again;
  again.validations = {Report(1, 81)};
  ASSERT_TRUE(store_->Write("j", again).ok());
  Reopen();
  EXPECT_THAT(LogOf("j"), testing::ElementsAre("0:9", "1:8", "val 1:81")) << "not twice";
  back.drop_reports_from = 0;
  ASSERT_TRUE(store_->Write("j", back).ok());
  EXPECT_TRUE(LogOf("j").empty());
  EXPECT_TRUE(store_->Validations("j")->empty());
}

TEST_F(StoreTest, ListIsInOrderOfCreationAndWithoutGraphs) {
  for (const char* id : {"z", "a", "m"}) ASSERT_TRUE(store_->Write(id, Create(id)).ok());
  auto records = store_->List();
  ASSERT_TRUE(records.ok());
  ASSERT_EQ(records->size(), 3u);
  EXPECT_EQ((*records)[0].job.id(), "z");
  EXPECT_EQ((*records)[2].job.id(), "m");
  EXPECT_FALSE((*records)[0].job.spec().has_graph());
  EXPECT_EQ((*records)[0].job.spec().name(), "n");
}

TEST_F(StoreTest, CreateRequiresNewAndWriteRequiresExistingJob) {
  ASSERT_TRUE(store_->Write("j", Create("j")).ok());
  EXPECT_EQ(store_->Write("j", Create("j")).code(), absl::StatusCode::kAlreadyExists);
  JobWrite write = Create("other");
  write.create = false;
  write.messages = {Message("lost")};
  EXPECT_EQ(store_->Write("other", write).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(LogOf("other").empty()) << "a failed write leaves nothing behind";
}

TEST_F(StoreTest, EpochsGrowAcrossReopening) {
  const uint64_t first = *store_->NextEpoch();
  const uint64_t second = *store_->NextEpoch();
  Reopen();
  const uint64_t third = *store_->NextEpoch();
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
}

TEST_F(StoreTest, ASecondCoordinatorIsRefused) {
  auto second = SqliteStore::Open(path_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another espalierd"));
}

TEST_F(StoreTest, FullDiskIsReportedAndStoreStaysUsable) {
  Reopen({.max_pages = 40});
  ASSERT_TRUE(store_->Write("j", Create("j")).ok());
  JobWrite big;
  big.messages = {Message(std::string(1 << 20, 'x'))};
  EXPECT_EQ(store_->Write("j", big).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(LogOf("j").empty());
  JobWrite small;
  small.messages = {Message("y")};
  EXPECT_TRUE(store_->Write("j", small).ok());
  Reopen();
  EXPECT_THAT(LogOf("j"), testing::ElementsAre("y"));
}

// As after disk errors: the files are open for writing, and writes fail.
TEST_F(StoreTest, ReadOnlyVolumeIsReportedAndStoreStaysUsable) {
  ASSERT_TRUE(store_->Write("j", Create("j")).ok());
  JobWrite write;
  write.messages = {Message("y")};
  sqlite3_vfs* const files = sqlite3_vfs_find(nullptr);
  const auto let_writes = [&](sqlite3_syscall_ptr be) {
    for (const char* name : {"pwrite", "pwrite64"}) {  // whichever SQLite uses
      EXPECT_EQ(files->xSetSystemCall(files, name, be), SQLITE_OK);
    }
  };
  const auto fail = +[](int, const void*, size_t, int64_t) -> ssize_t {
    errno = EROFS;
    return -1;
  };
  let_writes(reinterpret_cast<sqlite3_syscall_ptr>(fail));
  const absl::Status refused = store_->Write("j", write);
  EXPECT_TRUE(store_->Get("j").ok()) << "it can be read";
  let_writes(nullptr);  // restore
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(std::filesystem::path(path_).filename()), HasSubstr("read-only")));
  EXPECT_TRUE(LogOf("j").empty());
  EXPECT_TRUE(store_->Write("j", write).ok());
  Reopen();
  EXPECT_THAT(LogOf("j"), testing::ElementsAre("y"));
}

TEST_F(StoreTest, NewerOlderOrForeignStoreIsRefusedUnchanged) {
  ASSERT_TRUE(store_->Write("j", Create("j")).ok());
  const int64_t version = Number("PRAGMA user_version"), newer = version + 1;
  const int64_t application = Number("PRAGMA application_id");
  const auto set = [&](const std::string& what, int64_t value) {
    Number("PRAGMA " + what + "=" + std::to_string(value));
  };
  for (const int64_t other : {newer, int64_t{1}}) {
    set("user_version", other);
    const absl::Status refused = SqliteStore::Open(path_).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr(path_), HasSubstr("schema version " + std::to_string(other)),
                      HasSubstr("start the espalierd that wrote it")));
    EXPECT_EQ(Number("PRAGMA user_version"), other);
  }
  set("user_version", version);
  set("application_id", application + 1);
  const absl::Status refused = SqliteStore::Open(path_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(path_), HasSubstr("not a job store of Espalier")));
  set("application_id", application);
  Reopen();
  EXPECT_TRUE(store_->Get("j").ok());
}

// Messages of version 2 had no level.
TEST_F(StoreTest, AStoreOfVersion2IsReadAndMadeOneOfThisVersion) {
  JobWrite write = Create("j");
  write.reports = {Report(0, 3)};
  write.messages = {Message("going back to step 0")};
  ASSERT_TRUE(store_->Write("j", write).ok());
  const int64_t version = Number("PRAGMA user_version");
  Number("ALTER TABLE log DROP COLUMN level");
  Number("PRAGMA user_version=2");
  Reopen();
  EXPECT_THAT(LogOf("j"), testing::ElementsAre("0:3", "going back to step 0"));
  JobWrite more;
  more.messages = {Message("lost", v1::JobMessage::WARNING)};
  ASSERT_TRUE(store_->Write("j", more).ok());
  EXPECT_EQ(Number("PRAGMA user_version"), version);
  Reopen();
  EXPECT_THAT(LogOf("j"), testing::ElementsAre("0:3", "going back to step 0", "WARNING: lost"));
}

// What is there by half is neither this version nor the one before.
TEST_F(StoreTest, AStoreOfVersion2ThatCannotBeChangedStaysOne) {
  ASSERT_TRUE(store_->Write("j", Create("j")).ok());
  Number("PRAGMA user_version=2");  // with the new column, which cannot be added again
  const absl::Status refused = SqliteStore::Open(path_).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("duplicate column name: level"));
  EXPECT_EQ(Number("PRAGMA user_version"), 2);
}

TEST_F(StoreTest, ADamagedFileIsRefusedAtTheStart) {
  for (int i = 0; i < 50; ++i) {
    const std::string id = "j" + std::to_string(i);
    ASSERT_TRUE(store_->Write(id, Create(id)).ok());
  }
  store_.reset();
  const auto size = std::filesystem::file_size(path_);
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096);
    for (size_t i = 4096; i < size; ++i) file.put('\x5a');
  }
  EXPECT_EQ(SqliteStore::Open(path_).status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::resize_file(path_, size / 2);
  EXPECT_EQ(SqliteStore::Open(path_).status().code(), absl::StatusCode::kDataLoss);
  std::ofstream(path_, std::ios::trunc) << "this is no database at all, whatever its name says.";
  EXPECT_EQ(SqliteStore::Open(path_).status().code(), absl::StatusCode::kDataLoss);
}

// What a machine crash may leave of the write-ahead log: a prefix of the writes.
TEST_F(StoreTest, DamagedWriteAheadLogLosesOnlyItsEnd) {
  constexpr int kJobs = 12;
  for (int i = 0; i < kJobs; ++i) {
    const std::string id = "j" + std::to_string(i);
    ASSERT_TRUE(store_->Write(id, Create(id)).ok());
  }
  const std::string crashed = path_ + ".crashed", log = crashed + "-wal";
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path_ + "-wal"));
  ASSERT_GT(size, kJobs * 4096);
  // Returns the number of jobs after `damage` was applied to a copy's log.
  const auto jobs_after = [&](const auto& damage) -> int {
    for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(crashed + suffix);
    const auto over = std::filesystem::copy_options::overwrite_existing;
    std::filesystem::copy_file(path_, crashed, over);
    std::filesystem::copy_file(path_ + "-wal", log, over);
    damage();
    const auto opened = SqliteStore::Open(crashed);
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (!opened.ok()) return -1;
    const auto records = (*opened)->List();
    EXPECT_TRUE(records.ok()) << records.status();
    if (!records.ok()) return -1;
    for (size_t i = 0; i < records->size(); ++i) {
      EXPECT_EQ((*records)[i].job.id(), "j" + std::to_string(i));
    }
    return static_cast<int>(records->size());
  };
  EXPECT_EQ(jobs_after([] {}), kJobs);
  for (int64_t at : {size, size - 1, size * 3 / 4, size / 2, size / 4, int64_t{100}, int64_t{0}}) {
    SCOPED_TRACE(at);
    jobs_after([&] { std::filesystem::resize_file(log, static_cast<size_t>(at)); });
    if (at == size) continue;
    jobs_after([&] {
      std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(at);
      const auto byte = static_cast<char>(file.get() ^ 0x10);
      file.seekp(at);
      file.put(byte);
    });
  }
  // A disk may have written a later page but not the previous one.
  constexpr int64_t kHeader = 32, kFrame = 24 + 4096;
  const int64_t frames = (size - kHeader) / kFrame;
  ASSERT_EQ(kHeader + frames * kFrame, size);
  const std::pair<int64_t, int64_t> swapped[] = {
      {0, 1}, {frames / 2, frames / 2 + 1}, {frames - 2, frames - 1}, {0, frames - 1}};
  for (const auto& [first, second] : swapped) {
    SCOPED_TRACE(std::to_string(first) + " and " + std::to_string(second) + " swapped");
    EXPECT_LT(jobs_after([&] {
                std::string bytes(static_cast<size_t>(size), 0);
                std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
                file.read(bytes.data(), size);
                const auto frame = [&](int64_t i) { return bytes.begin() + kHeader + i * kFrame; };
                std::swap_ranges(frame(first), frame(first) + kFrame, frame(second));
                file.seekp(0);
                file.write(bytes.data(), size);
              }),
              kJobs);
  }
}

TEST_F(StoreTest, ABackupMadeWhileJobsWriteIsAStore) {
  const std::string copy = path_ + ".backup";
  std::filesystem::remove(copy);
  ASSERT_TRUE(store_->Write("before", Create("before")).ok());
  // Larger than a step of the backup, so that writes come between.
  ASSERT_TRUE(store_->PutBlob("large", std::string(3 << 20, 'x')).ok());
  int looks = 0;
  const absl::Status done = store_->BackUp(copy, [&] {
    const std::string id = "meanwhile-" + std::to_string(++looks);
    EXPECT_TRUE(store_->Write(id, Create(id)).ok());
    return false;
  });
  ASSERT_TRUE(done.ok()) << done;
  EXPECT_GE(looks, 3);
  ASSERT_TRUE(store_->Write("after", Create("after")).ok());
  auto restored = SqliteStore::Open(copy);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_TRUE((*restored)->Get("before").ok());
  EXPECT_EQ((*restored)->GetBlob("large")->size(), size_t{3} << 20);
  EXPECT_EQ((*restored)->Get("after").status().code(), absl::StatusCode::kNotFound);
  const auto jobs = (*restored)->List();
  ASSERT_TRUE(jobs.ok());
  EXPECT_LE(jobs->size(), static_cast<size_t>(looks) + 1);

  EXPECT_EQ(store_->BackUp(copy + "2", [] { return true; }).code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(store_->BackUp("/nowhere/backup", nullptr).ok());
  EXPECT_TRUE(store_->Write("more", Create("more")).ok()) << "the store stays usable";
}

TEST_F(StoreTest, AfterACheckpointTheFileAloneHasEverything) {
  ASSERT_TRUE(store_->Write("a", Create("a")).ok());
  EXPECT_GT(std::filesystem::file_size(path_ + "-wal"), 0u);
  ASSERT_TRUE(store_->Checkpoint().ok());
  EXPECT_EQ(std::filesystem::file_size(path_ + "-wal"), 0u);
  const std::string copy = path_ + ".copy";
  std::filesystem::copy_file(path_, copy, std::filesystem::copy_options::overwrite_existing);
  auto alone = SqliteStore::Open(copy);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_TRUE((*alone)->Get("a").ok());
  EXPECT_TRUE(store_->Checkpoint().ok()) << "again, with nothing to do";
}

// Otherwise what is acknowledged goes into a file that no restart finds.
TEST_F(StoreTest, NothingIsWrittenIntoAFileThatIsGone) {
  ASSERT_TRUE(store_->Write("a", Create("a")).ok());
  std::filesystem::rename(path_, path_ + ".moved");
  EXPECT_EQ(store_->CheckPresent().code(), absl::StatusCode::kUnavailable);
  const absl::Status refused = store_->Write("b", Create("b"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("was moved or removed"));
  EXPECT_EQ(store_->Checkpoint().code(), absl::StatusCode::kUnavailable);
  std::filesystem::rename(path_ + ".moved", path_);
  EXPECT_TRUE(store_->CheckPresent().ok());
  EXPECT_TRUE(store_->Write("b", Create("b")).ok());
}

TEST_F(StoreTest, ServedModelsAndArtifactsSurvive) {
  v1::ServeModelRequest served;
  served.set_name("m");
  served.set_artifact("a");
  ASSERT_TRUE(store_->PutServed(served, nullptr).ok());
  ArtifactRecord artifact;
  artifact.artifact.set_name("a");
  artifact.folder = "a@1";
  ASSERT_TRUE(store_->PutArtifact(artifact, nullptr).ok());
  Reopen();
  ASSERT_EQ(store_->Served()->size(), 1u);
  EXPECT_EQ((*store_->Served())[0].artifact(), "a");
  EXPECT_EQ((*store_->Artifacts())[0].folder, "a@1");
  ASSERT_TRUE(store_->DeleteServed("m", nullptr).ok());
  EXPECT_TRUE(store_->Served()->empty());
}

TEST_F(StoreTest, RepeatedCallGetsFirstAnswerChangedOneIsRefused) {
  v1::SubmitRequest request;
  request.mutable_spec()->set_name("one");
  request.set_idempotency_key("k");
  int runs = 0;
  auto call = [&](const char* method, const v1::SubmitRequest& body, v1::SubmitReply* reply) {
    Idempotency idempotency(store_.get());
    return idempotency.RunOnce(method, body.idempotency_key(), body, reply, [&] {
      reply->set_job_id("job-" + std::to_string(++runs));
      JobWrite write = Create(reply->job_id());
      write.idempotency_record =
          MakeIdempotencyRecord(method, body.idempotency_key(), body, *reply);
      return store_->Write(reply->job_id(), write);
    });
  };
  v1::SubmitReply first, second, third;
  ASSERT_TRUE(call("Submit", request, &first).ok());
  Reopen();
  ASSERT_TRUE(call("Submit", request, &second).ok());
  EXPECT_EQ(second.job_id(), first.job_id());
  EXPECT_EQ(runs, 1);
  request.mutable_spec()->set_name("two");
  absl::Status changed = call("Submit", request, &third);
  EXPECT_EQ(changed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(changed.message()), HasSubstr("another request"));
  EXPECT_EQ(call("Cancel", request, &third).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace espalier
