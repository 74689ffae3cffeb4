// Jobs that need the memory of all their workers wait for it.
#include <gmock/gmock.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "server/coordinator_fixture.h"

namespace espalier {
namespace {

class MemoryTest : public CoordinatorFixture {
 protected:
  // Two workers, each with memory for half of Submission()'s batch but not all of it.
  void AddTwoWorkers() {
    AddWorker();
    AddWorker();
    const v1::Plan roomy = WaitForEnd(Submit(Submission())).job().plan();
    ASSERT_EQ(roomy.devices_size(), 2);
    of_half_a_batch_ = roomy.prediction().peak_bytes(0) * 5 / 4;
    workers_.clear();
    ASSERT_TRUE(Eventually([&] { return coordinator_->workers().Live() == 0; }));
    AddWorkerOf(of_half_a_batch_);
    AddWorkerOf(of_half_a_batch_);
  }
  void AddWorkerOf(int64_t bytes) {
    AddWorker({.step = absl::Milliseconds(15), .memory_bytes = bytes});
  }

  bool EventuallySays(const std::string& id, const std::string& text) {
    return Eventually([&] {
      const auto messages = Get(id).messages();
      return std::any_of(messages.begin(), messages.end(), [&](const v1::JobMessage& message) {
        return message.level() == v1::JobMessage::WARNING &&
               absl::StrContains(message.text(), text);
      });
    });
  }

  int64_t of_half_a_batch_ = 0;
};

// It continues once the lost worker is replaced; until then other jobs run.
TEST_F(MemoryTest, MemoryBoundJobWaitsForReplacementOfLostWorker) {
  AddTwoWorkers();
  const std::string id = Submit(Submission());
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 20; });
  workers_[1]->Kill();
  ASSERT_TRUE(EventuallySays(id, "the memory of 1 of 2 workers is not enough; waiting"))
      << Get(id).job().error();
  EXPECT_EQ(Get(id).job().state(), v1::RECOVERING);
  v1::SubmitRequest small = Submission();
  small.mutable_spec()->set_batch_size(1);
  EXPECT_EQ(WaitForEnd(Submit(small)).job().state(), v1::SUCCEEDED) << "it is not waited with";
  EXPECT_EQ(Get(id).job().attempts(), 2) << "one that is in vain is not tried again";

  AddWorkerOf(of_half_a_batch_);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_EQ(reply.job().attempts(), 3);
  EXPECT_EQ(reply.job().plan().devices_size(), 2);
  EXPECT_GE(workers_[0]->first_step_of_last_run(), 20);
}

// The same number of workers may have less memory; a small worker must not block the job.
TEST_F(MemoryTest, JobWaitsForLargerWorkerWhenReplacementIsTooSmall) {
  AddTwoWorkers();
  const std::string id = Submit(Submission());
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 20; });
  workers_[1]->Kill();
  ASSERT_TRUE(EventuallySays(id, "the memory of 1 of 2 workers is not enough; waiting"))
      << Get(id).job().error();
  AddWorkerOf(2048);  // less than a third of the parameters
  ASSERT_TRUE(EventuallySays(id, "waiting for larger ones to join")) << Get(id).job().error();
  EXPECT_EQ(Get(id).job().state(), v1::RECOVERING);

  AddWorkerOf(of_half_a_batch_);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_EQ(reply.job().attempts(), 4);
  EXPECT_EQ(reply.job().plan().devices_size(), 2) << "the small one is left out";
  EXPECT_EQ(workers_[2]->runs(), 0);
}

// Workers that the plan does not use are no reason to retry with the same ones.
TEST_F(MemoryTest, ImportedPlanJobRetriesOnlyWithDifferentWorkers) {
  AddTwoWorkers();
  v1::SubmitRequest request = Submission();
  *request.mutable_spec()->mutable_search()->mutable_imported() =
      WaitForEnd(Submit(Submission())).job().plan();
  request.mutable_spec()->mutable_search()->set_strategy(v1::SearchOptions::IMPORTED);
  const std::string id = Submit(request);
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 20; });
  workers_[1]->Kill();
  ASSERT_TRUE(EventuallySays(id, "the memory of 1 of 2 workers is not enough; waiting"))
      << Get(id).job().error();
  AddWorkerOf(2048);
  ASSERT_TRUE(EventuallySays(id, "waiting for larger ones to join")) << Get(id).job().error();
  AddWorkerOf(2048);
  absl::SleepFor(absl::Seconds(1));
  EXPECT_EQ(Get(id).job().attempts(), 3);

  AddWorkerOf(of_half_a_batch_);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().attempts(), 4);
}

// The sufficient memory is read from the stored plan.
TEST_F(MemoryTest, ResumedJobWaitsForMissingWorkersAfterRestart) {
  AddTwoWorkers();
  const std::string id = Submit(Submission());
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 20; });
  Cancel(id);
  ASSERT_TRUE(Eventually([&] { return coordinator_->workers().Idle().size() == 2; }));
  workers_[1]->Kill();
  const std::string address = coordinator_->grpc_address();
  coordinator_.reset();
  StartCoordinator(address);
  ASSERT_TRUE(Eventually([&] { return coordinator_->workers().Live() == 1; }));
  EXPECT_EQ(Get(id).job().state(), v1::CANCELLED);
  Resume(id);
  ASSERT_TRUE(EventuallySays(id, "the memory of 1 of 2 workers is not enough; waiting"))
      << Get(id).job().error();
  EXPECT_EQ(Get(id).job().state(), v1::RECOVERING);

  AddWorkerOf(of_half_a_batch_);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_GE(workers_[0]->first_step_of_last_run(), 20);
}

}  // namespace
}  // namespace espalier
