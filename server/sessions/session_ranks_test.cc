// Which worker a session names that ends because of one of them.
#include "server/sessions/session_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "base/testing/fake_clock.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

// A worker that answers no command; a test ends its part of the session.
struct Worker {
  absl::Mutex mutex;
  absl::CondVar changed;
  std::optional<absl::Status> end;

  void End(const absl::Status& status) {
    absl::MutexLock lock(&mutex);
    if (!end.has_value()) end = status;
    changed.SignalAll();
  }
};

class Stream : public SessionRankStream {
 public:
  explicit Stream(std::shared_ptr<Worker> worker) : worker_(std::move(worker)) {}
  bool Write(const v1::RankCommand&) override {
    absl::MutexLock lock(&worker_->mutex);
    return !worker_->end.has_value();
  }
  bool Read(v1::RankResult*) override {
    if (!std::exchange(greeted_, true)) return true;
    absl::MutexLock lock(&worker_->mutex);
    while (!worker_->end.has_value()) worker_->changed.Wait(&worker_->mutex);
    return false;
  }
  absl::Status Finish() override {
    absl::MutexLock lock(&worker_->mutex);
    return *worker_->end;
  }

 private:
  const std::shared_ptr<Worker> worker_;
  bool greeted_ = false;
};

class Client : public WorkerClient {
 public:
  explicit Client(std::shared_ptr<Worker> worker) : worker_(std::move(worker)) {}

  absl::StatusOr<v1::LoadProgramReply> LoadProgram(const v1::LoadProgramRequest&,
                                                   absl::Duration) override {
    return v1::LoadProgramReply();
  }
  std::unique_ptr<SessionRankStream> RunSession() override {
    return std::make_unique<Stream>(worker_);
  }
  absl::Status Stop(const v1::StopRequest&, absl::Duration) override { return absl::OkStatus(); }
  void Cancel() override { worker_->End(absl::CancelledError("")); }

  absl::Status Run(const v1::RunRequest&,
                   const std::function<void(const v1::RunEvent&)>&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<v1::StartServingReply> StartServing(const v1::StartServingRequest&,
                                                     absl::Duration) override {
    return absl::UnimplementedError("");
  }
  std::unique_ptr<ServingStream> ServingSteps() override { return nullptr; }
  absl::StatusOr<v1::CheckpointAtReply> CheckpointAt(const v1::CheckpointAtRequest&,
                                                     absl::Duration) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<v1::MeasureReply> Measure(const v1::MeasureRequest&, absl::Duration) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<v1::ProbeReply> Probe(const v1::ProbeRequest&, absl::Duration) override {
    return absl::UnimplementedError("");
  }

 private:
  const std::shared_ptr<Worker> worker_;
};

class SessionRanksTest : public ::testing::Test {
 protected:
  SessionRanksTest() {
    std::vector<Member> members;
    for (int r = 0; r < 2; ++r) {
      v1::JoinRequest request;
      request.set_name(absl::StrCat("host-", r));
      request.set_address(absl::StrCat("127.0.0.1:", r + 1));
      request.set_protocol_version(kProtocolVersion);
      request.set_call_key(std::string(32, 'k'));
      request.mutable_device()->set_kind(v1::Device::CPU);
      request.mutable_device()->set_memory_bytes(1 << 30);
      request.mutable_device()->set_matmul_flops(1e9);
      request.mutable_device()->set_memory_bandwidth(1e9);
      EXPECT_TRUE(registry_.Join(request).ok());
      workers_.push_back(std::make_shared<Worker>());
    }
    absl::StatusOr<std::unique_ptr<SessionRanks>> ranks =
        SessionRanks::Create(cluster_, "session-1", registry_.Idle());
    EXPECT_TRUE(ranks.ok()) << ranks.status();
    ranks_ = *std::move(ranks);
    EXPECT_TRUE(ranks_->Load(std::vector<v1::LoadProgramRequest>(2)).ok());
  }

  // The error of a command that waits until the session is broken.
  std::string Error() {
    std::vector<std::vector<v1::RankCommand>> messages(1);
    messages[0].emplace_back().mutable_evaluate();
    const absl::Status status = ranks_->Run(
        std::move(messages), [](size_t, const v1::RankResult&) { return absl::OkStatus(); });
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    return std::string(status.message());
  }

  void Leave(size_t rank) { EXPECT_TRUE(registry_.Leave(ranks_->members()[rank].lease).ok()); }

  FakeClock clock_;
  uint64_t epoch_ = 0;
  WorkerRegistry registry_{&clock_, absl::Seconds(10),
                           [this]() -> absl::StatusOr<uint64_t> { return ++epoch_; }};
  Rendezvous rendezvous_;
  std::vector<std::shared_ptr<Worker>> workers_;
  SessionCluster cluster_{&registry_, &rendezvous_, [this](const Member& member) {
                            return std::make_unique<Client>(workers_[member.lease.epoch() - 1]);
                          }};
  std::unique_ptr<SessionRanks> ranks_;
};

// A worker that is told to end cancels its stream, leaves, and its peer misses it in any order.
TEST_F(SessionRanksTest, AWorkerThatLeavesIsNamedAndNotTheOneThatMissesIt) {
  workers_[0]->End(absl::UnavailableError("rank 1 is gone"));
  workers_[1]->End(absl::CancelledError("CANCELLED"));
  std::thread leave([this] {
    absl::SleepFor(absl::Milliseconds(100));
    Leave(1);
  });
  EXPECT_THAT(Error(), MatchesRegex("worker w2 \\(host-1\\) is lost: .*told to end and has left"));
  leave.join();
}

TEST_F(SessionRanksTest, AnIdlePeerDoesNotDelayTheName) {
  workers_[1]->End(absl::CancelledError("CANCELLED"));
  Leave(1);
  EXPECT_THAT(Error(), MatchesRegex("worker w2 \\(host-1\\) is lost: .*told to end and has left"));
}

TEST_F(SessionRanksTest, AWorkerThatDiesIsNamedEvenIfOnlyItsPeerNoticesIt) {
  workers_[0]->End(absl::UnavailableError("rank 1 is gone"));
  EXPECT_EQ(Error(), "worker w1 (host-0): rank 1 is gone (rank 1 is worker w2 (host-1))");
}

TEST_F(SessionRanksTest, ALostLeaseCountsMoreThanWhatPeersSay) {
  registry_.Suspect(ranks_->members()[1].lease);
  workers_[0]->End(absl::InternalError("a message is torn"));
  workers_[1]->End(absl::UnavailableError("Socket closed"));
  EXPECT_THAT(Error(), MatchesRegex("worker w2 \\(host-1\\) is lost: .*"));
}

TEST_F(SessionRanksTest, AnErrorOfTheSessionCountsMost) {
  workers_[1]->End(absl::InvalidArgumentError("column 'x' is missing"));
  workers_[0]->End(absl::UnavailableError("rank 1 is gone"));
  const std::string error = Error();
  EXPECT_EQ(error, "worker w2 (host-1): column 'x' is missing");
  EXPECT_THAT(error, Not(HasSubstr("gone")));
}

}  // namespace
}  // namespace espalier
