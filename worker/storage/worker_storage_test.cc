#include "worker/storage/worker_storage.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "storage/s3/fake_world.h"

namespace espalier {
namespace {

// A server of S3 that has one object at most, and counts what it is asked.
class OneObject : public s3::HttpTransport {
 public:
  absl::StatusOr<s3::HttpResponse> Send(const s3::HttpRequest& request) override {
    ++requests;
    for (const absl::Time end = absl::Now() + absl::Seconds(20); silent && absl::Now() < end;) {
      if (request.cancelled != nullptr && *request.cancelled) return absl::CancelledError("ends");
      absl::SleepFor(absl::Milliseconds(1));
    }
    s3::HttpResponse response;
    response.status = 200;
    if (request.method == "PUT" && has_object_) response.status = 412;
    if (request.method == "PUT") has_object_ = true;
    if (request.method == "DELETE") {
      has_object_ = false;
      response.status = 204;
    }
    if (request.method == "HEAD") response.status = 404;
    return response;
  }

  std::atomic<int> requests = 0;
  std::atomic<bool> silent = false;

 private:
  bool has_object_ = false;
};

class WorkerStorageTest : public ::testing::Test {
 protected:
  WorkerStorageTest() {
    world_.environment = s3::VariablesOf(variables_);
    world_.files = NewPosixFileSystem();
    world_.http = http_;
    world_.pauses = std::make_shared<s3::FakePauses>();
    reply_.set_data_dir("/data");
    reply_.set_shares_data_dir(true);
    reply_.set_checkpoint_store("s3://bucket/prefix");
  }

  const std::map<std::string, std::string> variables_ = {{"AWS_ACCESS_KEY_ID", "id"},
                                                         {"AWS_SECRET_ACCESS_KEY", "secret"},
                                                         {"AWS_REGION", "eu-north-1"}};
  const std::shared_ptr<OneObject> http_ = std::make_shared<OneObject>();
  s3::S3World world_;
  v1::JoinReply reply_;
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  WorkerStorage storage_{{.files = files_.get(), .object_store_world = [this] { return world_; }}};
};

// A check may take longer than a lease; after it the worker joins again.
TEST_F(WorkerStorageTest, AStoreThatWasCheckedIsNotCheckedAtTheNextJoin) {
  ASSERT_EQ(storage_.Join(reply_), absl::OkStatus());
  const int asked = http_->requests;
  EXPECT_GT(asked, 0);
  ASSERT_EQ(storage_.Join(reply_), absl::OkStatus());
  EXPECT_EQ(http_->requests, asked);
  reply_.set_checkpoint_store("s3://another");
  ASSERT_EQ(storage_.Join(reply_), absl::OkStatus());
  EXPECT_EQ(http_->requests, 2 * asked);
}

// The store may not answer for minutes, and a worker that is told to end does not wait for it.
TEST_F(WorkerStorageTest, AStoreThatDoesNotAnswerDoesNotHoldUpTheEnd) {
  http_->silent = true;
  absl::Status joined;
  std::thread join([&] { joined = storage_.Join(reply_); });
  while (http_->requests == 0) absl::SleepFor(absl::Milliseconds(1));
  storage_.Stop();
  join.join();
  EXPECT_TRUE(absl::IsCancelled(joined)) << joined;
}

TEST_F(WorkerStorageTest, AnAttemptThatIsOverAsksS3ForNothing) {
  ASSERT_EQ(storage_.Join(reply_), absl::OkStatus());
  v1::Attempt attempt;
  attempt.set_job_id("job-1");
  const std::shared_ptr<JobStorage> over = storage_.For(attempt), other = storage_.For(attempt);
  over->Cancel();
  const int asked = http_->requests;
  EXPECT_TRUE(absl::IsCancelled(over->checkpoints().Open("job-1/x").status()));
  EXPECT_EQ(http_->requests, asked);
  EXPECT_FALSE(absl::IsCancelled(other->checkpoints().Open("job-1/x").status()));
  EXPECT_GT(http_->requests, asked);
}

}  // namespace
}  // namespace espalier
