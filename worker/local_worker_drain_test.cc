// A worker that is told to end: what it says to the coordinator, and how long it waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "worker/fake_coordinator.h"
#include "worker/local_worker.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

class LocalWorkerDrainTest : public testing::Test {
 protected:
  void Start() {
    WorkerOptions options;
    options.coordinator = coordinator_.address();
    options.name = "a";
    options.threads = 1;
    options.memory_limit = 1 << 28;
    options.calibrate = false;
    options.cache_dir = testing::TempDir();
    auto worker = StartWorker(options);
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
  }
  // Returns how long it took.
  absl::Duration Drain(absl::Duration timeout) {
    const absl::Time begin = absl::Now();
    worker_->Drain(timeout);
    return absl::Now() - begin;
  }
  std::future<absl::Duration> DrainMeanwhile() {
    return std::async(std::launch::async, [this] { return Drain(absl::Minutes(1)); });
  }
  bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 1000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(10));
    return condition();
  }

  FakeCoordinator coordinator_{testing::TempDir()};
  std::unique_ptr<LocalWorker> worker_;
};

TEST_F(LocalWorkerDrainTest, AnIdleWorkerMayLeaveAtOnce) {
  Start();
  EXPECT_LT(Drain(absl::Minutes(1)), absl::Seconds(5));
  EXPECT_THAT(coordinator_.drains(), ElementsAre(1));
  EXPECT_EQ(coordinator_.left(), 0) << "that is for Stop";
  worker_->Stop();
  EXPECT_EQ(coordinator_.left(), 1);
}

TEST_F(LocalWorkerDrainTest, ItWaitsUntilNothingUsesIt) {
  Start();
  coordinator_.SetJobs({"job-1"});
  std::future<absl::Duration> took = DrainMeanwhile();
  EXPECT_TRUE(Eventually([&] { return !coordinator_.drains().empty(); }));
  EXPECT_EQ(took.wait_for(std::chrono::milliseconds(700)), std::future_status::timeout);
  coordinator_.SetJobs({});
  EXPECT_LT(took.get(), absl::Seconds(10));
  EXPECT_THAT(coordinator_.drains(), ElementsAre(1)) << "it says so once";
}

TEST_F(LocalWorkerDrainTest, ItWaitsNoLongerThanItMay) {
  Start();
  coordinator_.SetJobs({"job-1"});
  const absl::Duration took = Drain(absl::Milliseconds(300));
  EXPECT_GE(took, absl::Milliseconds(300));
  EXPECT_LT(took, absl::Seconds(3));
}

TEST_F(LocalWorkerDrainTest, ASecondSignalEndsTheWait) {
  Start();
  coordinator_.SetJobs({"job-1"});
  std::future<absl::Duration> took = DrainMeanwhile();
  EXPECT_TRUE(Eventually([&] { return !coordinator_.drains().empty(); }));
  worker_->EndDrain();
  EXPECT_LT(took.get(), absl::Seconds(10));
}

TEST_F(LocalWorkerDrainTest, ACoordinatorThatDoesNotAnswerIsWaitedForAsLongAsALease) {
  coordinator_.SetLeaseSeconds(0.5);
  Start();
  coordinator_.Hang();
  EXPECT_LT(Drain(absl::Minutes(1)), absl::Seconds(5));
}

TEST_F(LocalWorkerDrainTest, ACoordinatorThatKnowsNoDrainIsNotWaitedFor) {
  Start();
  coordinator_.KnowNoDrain();
  EXPECT_LT(Drain(absl::Minutes(1)), absl::Seconds(5));
}

TEST_F(LocalWorkerDrainTest, ACoordinatorThatWasStartedAgainIsToldAgain) {
  Start();
  coordinator_.SetJobs({"job-1"});
  std::future<absl::Duration> took = DrainMeanwhile();
  EXPECT_TRUE(Eventually([&] { return coordinator_.drains().size() == 1; }));
  coordinator_.ForgetLeases();
  EXPECT_TRUE(Eventually([&] { return coordinator_.drains().size() == 2; }));
  EXPECT_THAT(coordinator_.drains(), ElementsAre(1, 2));
  coordinator_.SetJobs({});
  EXPECT_LT(took.get(), absl::Seconds(20));
}

}  // namespace
}  // namespace espalier
