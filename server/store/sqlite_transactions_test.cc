#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/store/idempotency.h"
#include "server/store/sqlite_store.h"

namespace espalier {
namespace {

class SqliteTransactionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "/transactions_" +
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
  static JobWrite Creation(const std::string& id) {
    JobWrite write;
    write.create = true;
    write.job.emplace();
    write.job->job.set_id(id);
    write.messages.emplace_back().set_text("made");
    return write;
  }
  std::set<std::string> Stored() {
    std::set<std::string> ids;
    const auto records = store_->List();
    EXPECT_TRUE(records.ok()) << records.status();
    for (const JobRecord& record : *records) {
      ids.insert(record.job.id());
      EXPECT_EQ(store_->Log(record.job.id(), 0, 0, 10)->size(), 1u) << record.job.id();
    }
    return ids;
  }

  std::string path_;
  std::unique_ptr<SqliteStore> store_;
};

TEST_F(SqliteTransactionsTest, WritesOfManyThreadsAreAllDurable) {
  constexpr int kThreads = 8, kJobs = 20;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kJobs; ++i) {
        // All threads create job-shared-<i>, and one of them can.
        const std::string id = "job-" + std::to_string(t) + "-" + std::to_string(i);
        EXPECT_EQ(store_->Write(id, Creation(id)), absl::OkStatus());
        const std::string shared = "job-shared-" + std::to_string(i);
        const absl::Status status = store_->Write(shared, Creation(shared));
        EXPECT_TRUE(status.ok() || absl::IsAlreadyExists(status)) << status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Reopen();
  EXPECT_EQ(Stored().size(), (kThreads + 1) * kJobs);
}

TEST_F(SqliteTransactionsTest, OneThatFailsDoesNotConcernTheOthers) {
  ASSERT_EQ(store_->Write("b", Creation("b")), absl::OkStatus());
  const JobWrite a = Creation("a"), b = Creation("b"), c = Creation("c");
  const std::vector<absl::Status> statuses = store_->WriteAll({{"a", &a}, {"b", &b}, {"c", &c}});
  ASSERT_EQ(statuses.size(), 3u);
  EXPECT_EQ(statuses[0], absl::OkStatus());
  EXPECT_TRUE(absl::IsAlreadyExists(statuses[1])) << statuses[1];
  EXPECT_EQ(statuses[2], absl::OkStatus());
  Reopen();
  EXPECT_EQ(Stored(), (std::set<std::string>{"a", "b", "c"}));
}

TEST_F(SqliteTransactionsTest, OnAFullDiskWhatIsAcknowledgedIsThere) {
  Reopen({.max_pages = 60});
  std::vector<JobWrite> writes;
  std::vector<JobStore::NamedWrite> named;
  for (int i = 0; i < 40; ++i) {
    writes.push_back(Creation("job-" + std::to_string(i)));
    writes.back().job->job.set_error(std::string(5000 + 1000 * (i % 3), 'x'));
  }
  for (const JobWrite& write : writes) named.emplace_back(write.job->job.id(), &write);
  const std::vector<absl::Status> statuses = store_->WriteAll(named);
  std::set<std::string> acknowledged;
  for (size_t i = 0; i < statuses.size(); ++i) {
    if (statuses[i].ok()) {
      acknowledged.insert(named[i].first);
    } else {
      EXPECT_TRUE(absl::IsResourceExhausted(statuses[i])) << statuses[i];
    }
  }
  EXPECT_FALSE(acknowledged.empty());
  EXPECT_LT(acknowledged.size(), statuses.size());
  Reopen();
  EXPECT_EQ(Stored(), acknowledged);
}

TEST_F(SqliteTransactionsTest, ADeletedJobIsGoneWithItsLogAndOthersStay) {
  for (const char* id : {"a", "b"}) ASSERT_EQ(store_->Write(id, Creation(id)), absl::OkStatus());
  EXPECT_EQ(store_->DeleteJob("a", nullptr), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(store_->DeleteJob("a", nullptr)));
  Reopen();
  EXPECT_EQ(Stored(), std::set<std::string>{"b"});
  EXPECT_TRUE(absl::IsNotFound(store_->Get("a").status()));
  EXPECT_TRUE(store_->Log("a", 0, 0, 10)->empty());
}

TEST_F(SqliteTransactionsTest, KeysOfAnEarlierRunAreKnown) {
  v1::SubmitReply reply;
  reply.set_job_id("a");
  JobWrite write = Creation("a");
  write.idempotency_record = MakeIdempotencyRecord("Submit", "key", v1::SubmitRequest(), reply);
  ASSERT_EQ(store_->Write("a", write), absl::OkStatus());
  Reopen();
  const auto known = store_->FindReply("Submit", "key", RequestSha256(v1::SubmitRequest()));
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_TRUE(known->has_value());
  EXPECT_FALSE(store_->FindReply("Submit", "other", "")->has_value());
}

}  // namespace
}  // namespace espalier
