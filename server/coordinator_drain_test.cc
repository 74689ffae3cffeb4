// Workers that are about to leave, and the jobs that train on them.
#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "proto/states.h"
#include "server/coordinator_fixture.h"
#include "server/metrics/metrics.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class CoordinatorDrainTest : public CoordinatorFixture {
 protected:
  v1::WorkerInfo InfoOf(const std::string& name) {
    for (const v1::WorkerInfo& info : coordinator_->workers().List()) {
      if (info.name() == name && !IsGone(info.state())) return info;
    }
    return {};
  }
  v1::Lease LeaseOf(const std::string& name) {
    v1::Lease lease;
    lease.set_worker_id(InfoOf(name).worker_id());
    uint64_t epoch = 0;
    EXPECT_TRUE(absl::SimpleAtoi(lease.worker_id().substr(1), &epoch)) << name;
    lease.set_epoch(epoch);
    return lease;
  }
  // As the worker itself does.
  v1::Lease Drain(const std::string& name) {
    const v1::Lease lease = LeaseOf(name);
    grpc::ClientContext context;
    v1::DrainRequest request;
    *request.mutable_lease() = lease;
    v1::DrainReply reply;
    const grpc::Status status = cluster_->Drain(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return lease;
  }
  bool Drained(const v1::Lease& lease) {
    grpc::ClientContext context;
    v1::HeartbeatRequest request;
    *request.mutable_lease() = lease;
    v1::HeartbeatReply reply;
    const grpc::Status status = cluster_->Heartbeat(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.drained();
  }
  // It writes no checkpoint unless it is asked to.
  v1::SubmitRequest WithoutCheckpoints() {
    v1::SubmitRequest request = Submission();
    request.mutable_spec()->set_checkpoint_every_steps(100'000);
    return request;
  }
  void AwaitSteps(const std::string& id, int64_t steps) {
    WaitFor(id, [&](const v1::Job& job) { return job.steps_done() >= steps; });
  }
};

TEST_F(CoordinatorDrainTest, AJobGoesOnWithoutAWorkerThatLeavesAndLosesNoStep) {
  AddWorker({.step = absl::Milliseconds(20)});
  AddWorker({.step = absl::Milliseconds(20)});
  const std::string id = Submit(WithoutCheckpoints());
  AwaitSteps(id, 5);
  const v1::Lease leaving = Drain("fake-2");
  EXPECT_TRUE(Eventually([&] { return Drained(leaving); }));
  const int64_t done = Get(id).job().checkpoint_step();
  EXPECT_GE(done, 5);
  workers_[1]->Kill();

  const v1::GetJobReply reply = WaitForEnd(id);
  EXPECT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().attempts(), 2);
  EXPECT_EQ(reply.job().plan().devices_size(), 1);
  EXPECT_EQ(workers_[0]->first_step_of_last_run(), done);
  ExpectWholeCurve(reply);
  EXPECT_THAT(reply.messages(),
              Contains(Says(v1::JobMessage::INFO,
                            absl::StrCat("worker ", leaving.worker_id(),
                                         " (fake-2) is about to leave: goes on from step ", done,
                                         " without it"))));
  EXPECT_THAT(reply.messages(), Not(Contains(Says(v1::JobMessage::WARNING, HasSubstr("worker")))));
}

TEST_F(CoordinatorDrainTest, AWorkerThatWasTooBusyForTheRequestIsAskedAgain) {
  AddWorker({.step = absl::Milliseconds(20), .unheard_checkpoint_requests = 1});
  AddWorker({.step = absl::Milliseconds(20)});
  AwaitSteps(Submit(WithoutCheckpoints()), 5);
  const v1::Lease leaving = Drain("fake-2");
  EXPECT_TRUE(Eventually([&] { return Drained(leaving); }));
}

TEST_F(CoordinatorDrainTest, AJobWaitsForAnotherWorkerAndGoesOnAtThatStep) {
  AddWorker({.step = absl::Milliseconds(20)});
  const std::string id = Submit(WithoutCheckpoints());
  AwaitSteps(id, 5);
  const v1::Lease leaving = Drain("fake-1");
  EXPECT_TRUE(Eventually([&] { return Drained(leaving); }));
  const v1::GetJobReply waits = Get(id);
  EXPECT_EQ(waits.job().state(), v1::RECOVERING);
  const int64_t done = waits.job().checkpoint_step();
  EXPECT_GE(done, 5);
  EXPECT_THAT(waits.messages(),
              Contains(Says(v1::JobMessage::INFO,
                            EndsWith(absl::StrCat("is about to leave: goes on from step ", done,
                                                  " once there are other workers")))));
  // It is there, but gets nothing.
  EXPECT_TRUE(Eventually([&] {
    const v1::GetJobReply reply = Get(id);
    return absl::c_any_of(reply.messages(), [](const v1::JobMessage& message) {
      return message.text() == "waits for a worker: the only one is about to leave";
    });
  }));
  EXPECT_EQ(Get(id).job().attempts(), 1);
  EXPECT_EQ(InfoOf("fake-1").state(), v1::WorkerInfo::DRAINING);
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(coordinator_->metrics().Expose(),
                             "\nespalier_workers{state=\"draining\"} 1\n");
  }));

  AddWorker();
  const v1::GetJobReply reply = WaitForEnd(id);
  EXPECT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().attempts(), 2);
  EXPECT_EQ(workers_[1]->first_step_of_last_run(), done);
  EXPECT_EQ(workers_[0]->runs(), 1);
  ExpectWholeCurve(reply);
}

TEST_F(CoordinatorDrainTest, AJobKeepsItsLeastNumberOfWorkers) {
  AddWorker({.step = absl::Milliseconds(20)});
  AddWorker({.step = absl::Milliseconds(20)});
  v1::SubmitRequest request = WithoutCheckpoints();
  request.mutable_spec()->set_min_devices(2);
  const std::string id = Submit(request);
  AwaitSteps(id, 5);
  const v1::Lease leaving = Drain("fake-1");
  EXPECT_TRUE(Eventually([&] { return Drained(leaving); }));
  const int64_t done = Get(id).job().checkpoint_step();
  EXPECT_THAT(Get(id).messages(),
              Contains(Says(v1::JobMessage::INFO,
                            EndsWith(absl::StrCat("goes on from step ", done, " once there are at ",
                                                  "least 2 workers (min_devices)")))));
  AddWorker();
  const v1::GetJobReply reply = WaitForEnd(id);
  EXPECT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().plan().devices_size(), 2);
  ExpectWholeCurve(reply);
}

TEST_F(CoordinatorDrainTest, AnyNumberOfWorkersMayLeaveOneAfterTheOther) {
  AddWorker({.step = absl::Milliseconds(20)});
  const std::string id = Submit(WithoutCheckpoints());
  for (int i = 1; i <= 5; ++i) {  // the third attempt without progress would fail it
    WaitFor(id, [&](const v1::Job& job) { return job.attempts() == i && job.steps_done() > 0; });
    AddWorker({.step = absl::Milliseconds(20)});
    const v1::Lease leaving = Drain(absl::StrCat("fake-", i));
    EXPECT_TRUE(Eventually([&] { return Drained(leaving); }));
  }
  const v1::GetJobReply reply = WaitForEnd(id);
  EXPECT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().attempts(), 6);
  ExpectWholeCurve(reply);
}

TEST_F(CoordinatorDrainTest, AnAttemptThatHasTrainedNothingNeedsNoCheckpoint) {
  FakeWorker& first = AddWorker();
  first.Stall();
  const std::string id = Submit(WithoutCheckpoints());
  WaitFor(id, [](const v1::Job& job) { return job.state() == v1::RUNNING; });
  const v1::Lease leaving = Drain("fake-1");
  AddWorker();
  first.Unstall();
  const v1::GetJobReply reply = WaitForEnd(id);
  EXPECT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().attempts(), 2);
  EXPECT_EQ(workers_[1]->first_step_of_last_run(), 0);
  EXPECT_THAT(reply.messages(),
              Contains(Says(v1::JobMessage::INFO,
                            AllOf(StartsWith("worker " + leaving.worker_id()),
                                  HasSubstr("is about to leave: goes on from the beginning")))));
}

TEST_F(CoordinatorDrainTest, AFullDiskMakesItALossThatSaysWhy) {
  AddWorker({.step = absl::Milliseconds(20)});
  AddWorker({.step = absl::Milliseconds(20)});
  files_.set_free_bytes(0);
  const std::string id = Submit(WithoutCheckpoints());
  AwaitSteps(id, 5);
  const v1::Lease leaving = Drain("fake-2");
  WaitFor(id, [](const v1::Job& job) { return !job.checkpoints_paused().empty(); });
  EXPECT_FALSE(Drained(leaving)) << "there may be room soon";
  // Its --drain-timeout is over.
  grpc::ClientContext context;
  v1::LeaveRequest leave;
  *leave.mutable_lease() = leaving;
  v1::LeaveReply left;
  ASSERT_TRUE(cluster_->Leave(&context, leave, &left).ok());
  workers_[1]->Kill();
  files_.set_free_bytes(int64_t{1} << 40);
  const v1::GetJobReply reply = WaitForEnd(id);
  EXPECT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  EXPECT_THAT(reply.messages(),
              Contains(Says(v1::JobMessage::WARNING, StartsWith("checkpoints are paused"))));
  EXPECT_THAT(reply.messages(), Contains(Says(v1::JobMessage::WARNING,
                                              AllOf(HasSubstr("was told to end and has left"),
                                                    HasSubstr("starting again")))));
}

TEST_F(CoordinatorDrainTest, AFullDiskThatHasRoomAgainLosesNothing) {
  AddWorker({.step = absl::Milliseconds(200)});
  files_.set_free_bytes(0);
  const std::string id = Submit(WithoutCheckpoints());
  AwaitSteps(id, 2);
  const v1::Lease leaving = Drain("fake-1");
  WaitFor(id, [](const v1::Job& job) { return !job.checkpoints_paused().empty(); });
  files_.set_free_bytes(int64_t{1} << 40);
  EXPECT_TRUE(Eventually([&] { return Drained(leaving); }));
  EXPECT_GE(Get(id).job().checkpoint_step(), 2);
}

TEST_F(CoordinatorDrainTest, ADrainingWorkerIsNoneToPlanFor) {
  AddWorker();
  AddWorker();
  Drain("fake-1");
  EXPECT_TRUE(Drained(LeaseOf("fake-1"))) << "an idle one may leave at once";
  grpc::ClientContext context;
  v1::DryRunRequest request;
  *request.mutable_spec() = Submission().spec();
  v1::DryRunReply reply;
  ASSERT_TRUE(training_->DryRun(&context, request, &reply).ok());
  EXPECT_EQ(reply.memory_size(), 1);
  const v1::GetJobReply job = WaitForEnd(Submit(Submission()));
  EXPECT_EQ(job.job().plan().devices_size(), 1);
  EXPECT_EQ(workers_[0]->runs(), 0);
}

TEST_F(CoordinatorDrainTest, ARestartedCoordinatorIsToldAgain) {
  AddWorker({.step = absl::Milliseconds(20)});
  AddWorker({.step = absl::Milliseconds(20)});
  const std::string id = Submit(WithoutCheckpoints());
  AwaitSteps(id, 5);
  Drain("fake-1");
  WaitFor(id, [](const v1::Job& job) { return job.attempts() == 2; });
  const std::string address = coordinator_->grpc_address();
  coordinator_.reset();
  StartCoordinator(address);
  EXPECT_TRUE(Eventually([&] { return coordinator_->workers().Live() == 2; }));
  EXPECT_NE(InfoOf("fake-1").state(), v1::WorkerInfo::DRAINING) << "it has to say so";
  const v1::Lease leaving = Drain("fake-1");
  EXPECT_TRUE(Eventually([&] { return Drained(leaving); }));
  const v1::GetJobReply reply = WaitForEnd(id);
  EXPECT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().plan().devices_size(), 1);
  ExpectWholeCurve(reply);
}

}  // namespace
}  // namespace espalier
