#include "server/store/idempotency.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "server/store/sqlite_store.h"

namespace espalier {
namespace {

class IdempotencyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = ::testing::TempDir() + "/idempotency.db";
    for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path + suffix);
    auto opened = SqliteStore::Open(path);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
    calls_ = std::make_unique<Idempotency>(store_.get());
  }
  // A call that creates a job and answers with its id.
  absl::Status Create(const std::string& key, const std::string& id, v1::SubmitReply* reply) {
    reply->set_job_id(id);
    JobWrite write;
    write.create = true;
    write.job.emplace();
    write.job->job.set_id(id);
    write.idempotency_record = MakeIdempotencyRecord("Submit", key, v1::SubmitRequest(), *reply);
    return store_->Write(id, write);
  }

  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<Idempotency> calls_;
};

// An admin, or anybody where there are no keys, has no owner.
TEST_F(IdempotencyTest, NoKeyPassesForAnotherOwners) {
  EXPECT_NE(OwnersKey("", "alice\nk"), OwnersKey("alice", "k"));
  EXPECT_NE(OwnersKey("", "alice\nk"), OwnersKey("", "\nalice\nk"));
  EXPECT_EQ(CallersKey(OwnersKey("", "alice\nk")), "alice\nk");
  EXPECT_EQ(CallersKey(OwnersKey("alice", "a\nb")), "a\nb");
  EXPECT_EQ(OwnersKey("", "k"), "k");
  EXPECT_EQ(OwnersKey("alice", ""), "") << "none was given";
  EXPECT_FALSE(CheckIdempotencyKey(OwnersKey("", std::string(300, 'A') + "\nx")).ok())
      << "all of it is measured";
}

TEST_F(IdempotencyTest, ACallWithAnotherKeyDoesNotWait) {
  absl::Notification runs, end;
  v1::SubmitReply slow, quick;
  std::thread first([&] {
    EXPECT_EQ(calls_->RunOnce("Submit", "slow", v1::SubmitRequest(), &slow,
                              [&] {
                                runs.Notify();
                                end.WaitForNotification();
                                return Create("slow", "job-1", &slow);
                              }),
              absl::OkStatus());
  });
  runs.WaitForNotification();
  EXPECT_EQ(calls_->RunOnce("Submit", "quick", v1::SubmitRequest(), &quick,
                            [&] { return Create("quick", "job-2", &quick); }),
            absl::OkStatus());
  EXPECT_EQ(quick.job_id(), "job-2");
  end.Notify();
  first.join();
}

TEST_F(IdempotencyTest, ARepetitionThatOvertakesTheCallGetsItsAnswer) {
  absl::Notification runs;
  std::atomic<int> bodies = 0;
  v1::SubmitReply replies[2];
  const auto call = [&](v1::SubmitReply* reply) {
    EXPECT_EQ(calls_->RunOnce("Submit", "key", v1::SubmitRequest(), reply,
                              [&] {
                                ++bodies;
                                if (!runs.HasBeenNotified()) runs.Notify();
                                absl::SleepFor(absl::Milliseconds(50));
                                return Create("key", "job-1", reply);
                              }),
              absl::OkStatus());
  };
  std::thread first(call, &replies[0]);
  runs.WaitForNotification();
  call(&replies[1]);
  first.join();
  EXPECT_EQ(bodies, 1);
  EXPECT_EQ(replies[1].job_id(), "job-1");
}

TEST_F(IdempotencyTest, ACallThatFailedRunsAgain) {
  v1::SubmitReply reply;
  EXPECT_TRUE(absl::IsUnavailable(calls_->RunOnce("Submit", "key", v1::SubmitRequest(), &reply, [] {
    return absl::UnavailableError("the disk is full");
  })));
  EXPECT_EQ(calls_->RunOnce("Submit", "key", v1::SubmitRequest(), &reply,
                            [&] { return Create("key", "job-1", &reply); }),
            absl::OkStatus());
  EXPECT_EQ(reply.job_id(), "job-1");
}

}  // namespace
}  // namespace espalier
