#include "server/store/sqlite_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "server/store/job_store_fixture.h"
#include "server/store/sqlite.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StoreTest : public JobStoreTest {
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

  JobStore& store() override { return *store_; }

  std::string path_;
  std::unique_ptr<SqliteStore> store_;
};

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
  Number("ALTER TABLE log DROP COLUMN unix_ms");
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

// Messages of version 3 had no time.
TEST_F(StoreTest, AStoreOfVersion3IsReadAndMadeOneOfThisVersion) {
  JobWrite write = Create("j");
  write.messages = {Message("lost", v1::JobMessage::WARNING)};
  ASSERT_TRUE(store_->Write("j", write).ok());
  const int64_t version = Number("PRAGMA user_version");
  Number("ALTER TABLE log DROP COLUMN unix_ms");
  Number("PRAGMA user_version=3");
  Reopen();
  JobWrite more;
  more.messages = {Message("found")};
  more.messages[0].set_unix_ms(17);
  ASSERT_TRUE(store_->Write("j", more).ok());
  EXPECT_EQ(Number("PRAGMA user_version"), version);
  Reopen();
  EXPECT_THAT(LogOf("j"), testing::ElementsAre("WARNING: lost", "found"));
  const auto log = store_->Log("j", 0, 0, 10);
  EXPECT_EQ(std::get<v1::JobMessage>(log->at(0).entry).unix_ms(), 0);
  EXPECT_EQ(std::get<v1::JobMessage>(log->at(1).entry).unix_ms(), 17);
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

}  // namespace
}  // namespace espalier
