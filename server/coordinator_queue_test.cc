// The queue of jobs over gRPC: priorities, time limits, deletion and lists.
#include <filesystem>

#include "server/artifacts/artifact_store.h"
#include "server/coordinator_fixture.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class CoordinatorQueueTest : public CoordinatorFixture {
 protected:
  grpc::Status Update(v1::UpdateJobRequest request) {
    grpc::ClientContext context;
    v1::UpdateJobReply reply;
    return training_->Update(&context, request, &reply);
  }
  grpc::Status SetPriority(const std::string& id, int32_t priority) {
    v1::UpdateJobRequest request;
    request.set_job_id(id);
    request.set_priority(priority);
    return Update(request);
  }
  grpc::Status SetTimeLimit(const std::string& id, double seconds) {
    v1::UpdateJobRequest request;
    request.set_job_id(id);
    request.set_time_limit_seconds(seconds);
    return Update(request);
  }
  grpc::Status Delete(const std::string& id, const std::string& key = "") {
    grpc::ClientContext context;
    v1::DeleteJobRequest request;
    request.set_job_id(id);
    request.set_idempotency_key(key);
    v1::DeleteJobReply reply;
    return training_->Delete(&context, request, &reply);
  }
  v1::ListJobsReply List(const v1::ListJobsRequest& request) {
    grpc::ClientContext context;
    v1::ListJobsReply reply;
    const grpc::Status status = training_->List(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
};

TEST_F(CoordinatorQueueTest, ATimeLimitEndsAJobThatGoesOnFromWhatItHasTrained) {
  FakeWorker& worker = AddWorker({.step = absl::Milliseconds(20)});
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->set_checkpoint_every_steps(0);
  request.mutable_spec()->set_time_limit_seconds(0.7);
  const std::string id = Submit(request);
  v1::Job job = WaitForEnd(id).job();
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_THAT(job.error(), StartsWith("time limit: the job has had workers for "));
  EXPECT_THAT(job.error(), HasSubstr("espalier jobs resume " + id));
  EXPECT_GT(job.checkpoint_step(), 0);
  EXPECT_LT(job.checkpoint_step(), kSteps);
  EXPECT_GE(job.running_seconds(), 0.7);
  EXPECT_GE(job.device_seconds(), 0.7);
  // Nothing of it is left to do for the workers, and its checkpoint stays.
  EXPECT_TRUE(Eventually([&] { return coordinator_->workers().Idle().size() == 1; }));

  Resume(id);
  EXPECT_TRUE(SetTimeLimit(id, 0).ok());
  const v1::GetJobReply reply = WaitForEnd(id);
  EXPECT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(worker.first_step_of_last_run() > 0 || worker.runs() > 2, true);
  EXPECT_GT(reply.job().device_seconds(), job.device_seconds());
  ExpectWholeCurve(reply);
}

TEST_F(CoordinatorQueueTest, ALimitOfAResumedJobBeginsAnew) {
  AddWorker({.step = absl::Milliseconds(20)});
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->set_time_limit_seconds(0.7);
  const std::string id = Submit(request);
  const int64_t first = WaitForEnd(id).job().checkpoint_step();
  Resume(id);
  const v1::Job job = WaitFor(id, [](const v1::Job& j) {
                        return j.attempts() == 2 && j.state() >= v1::SUCCEEDED;
                      }).job();
  EXPECT_GT(job.checkpoint_step(), first + 5);
  EXPECT_LT(job.running_seconds(), 5);
}

TEST_F(CoordinatorQueueTest, AJobOfHigherPriorityStartsFirst) {
  FakeWorker& worker = AddWorker();
  worker.Stall();
  const std::string running = Submit(Submission());
  WaitFor(running, [](const v1::Job& job) { return job.state() == v1::RUNNING; });
  const std::string second = Submit(Submission());
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->set_priority(5);
  const std::string third = Submit(request);
  const std::string fourth = Submit(Submission());
  EXPECT_EQ(Get(third).job().queue_position(), 1);
  EXPECT_EQ(Get(second).job().queue_position(), 2);
  EXPECT_EQ(Get(fourth).job().queue_position(), 3);
  EXPECT_TRUE(SetPriority(fourth, 6).ok());
  EXPECT_EQ(Get(fourth).job().queue_position(), 1);
  EXPECT_EQ(Get(running).job().queue_position(), 0);
  const grpc::Status late = SetPriority(running, 9);
  EXPECT_EQ(late.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(late.error_message(), HasSubstr("cannot be changed any more"));

  worker.Unstall();
  int64_t before = 0;
  for (const std::string& id : {running, fourth, third, second}) {
    const v1::Job job = WaitForEnd(id).job();
    EXPECT_GE(job.started_unix_ms(), before) << id;
    before = job.started_unix_ms();
  }
}

TEST_F(CoordinatorQueueTest, APriorityOutlivesTheCoordinator) {
  const std::string first = Submit(Submission()), second = Submit(Submission());
  EXPECT_TRUE(SetPriority(second, 7).ok());
  const std::string address = coordinator_->grpc_address();
  coordinator_.reset();
  StartCoordinator(address);
  EXPECT_EQ(Get(second).job().priority(), 7);
  EXPECT_EQ(Get(second).job().queue_position(), 1);
  EXPECT_EQ(Get(first).job().queue_position(), 2);
}

TEST_F(CoordinatorQueueTest, ADeletedJobIsGoneForGood) {
  AddWorker();
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->set_steps(100'000);
  const std::string id = Submit(request);
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() > 0; });
  const grpc::Status runs = Delete(id);
  EXPECT_EQ(runs.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(runs.error_message(), HasSubstr("espalier jobs cancel " + id));

  Cancel(id);
  const grpc::Status deleted = Delete(id, "key");
  EXPECT_TRUE(deleted.ok()) << deleted.error_message();
  EXPECT_TRUE(Delete(id, "key").ok());  // the same call again
  EXPECT_EQ(Delete(id).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_FALSE(std::filesystem::exists(CheckpointsOf(id)));
  EXPECT_THAT(List({}).jobs(), IsEmpty());
  EXPECT_TRUE(Eventually([&] { return coordinator_->workers().Idle().size() == 1; }));

  // Its id is not given again, also after a restart.
  const std::string address = coordinator_->grpc_address();
  workers_.clear();
  coordinator_.reset();
  StartCoordinator(address);
  EXPECT_THAT(List({}).jobs(), IsEmpty());
  EXPECT_EQ(Submit(Submission()), "job-2");
}

TEST_F(CoordinatorQueueTest, TheModelOfADeletedJobStays) {
  AddWorker();
  const std::string id = Submit(Submission());
  EXPECT_EQ(WaitForEnd(id).job().state(), v1::SUCCEEDED);
  EXPECT_TRUE(Delete(id).ok());
  EXPECT_TRUE(coordinator_->artifacts().Find(id).ok());
}

TEST_F(CoordinatorQueueTest, ListsShowWhatIsAskedFor) {
  const std::string first = Submit(Submission());
  v1::SubmitRequest named = Submission();
  named.mutable_spec()->set_name("other");
  const std::string second = Submit(named), third = Submit(named);
  Cancel(second);
  v1::ListJobsRequest request;
  request.add_states(v1::QUEUED);
  request.set_name("oth*");
  v1::ListJobsReply reply = List(request);
  ASSERT_EQ(reply.jobs_size(), 1);
  EXPECT_EQ(reply.jobs(0).id(), third);
  EXPECT_FALSE(reply.jobs(0).spec().has_graph());
  request.Clear();
  request.set_page_size(2);
  request.set_newest_first(true);
  reply = List(request);
  EXPECT_EQ(reply.jobs(0).id(), third);
  EXPECT_EQ(reply.jobs(1).id(), second);
  EXPECT_EQ(reply.jobs(1).state(), v1::CANCELLED);
  EXPECT_EQ(reply.matching(), 3);
  request.set_page_token(reply.next_page_token());
  reply = List(request);
  ASSERT_EQ(reply.jobs_size(), 1);
  EXPECT_EQ(reply.jobs(0).id(), first);
  EXPECT_EQ(reply.next_page_token(), "");
}

TEST_F(CoordinatorQueueTest, WhatCannotBeIsRefused) {
  const auto error = [this](const v1::SubmitRequest& request) {
    grpc::ClientContext context;
    v1::SubmitReply reply;
    return training_->Submit(&context, request, &reply).error_message();
  };
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->set_priority(1001);
  EXPECT_THAT(error(request), HasSubstr("spec.priority is 1001"));
  request = Submission();
  request.mutable_spec()->set_time_limit_seconds(-1);
  EXPECT_THAT(error(request), HasSubstr("spec.time_limit_seconds is -1"));
  const std::string id = Submit(Submission());
  EXPECT_THAT(SetTimeLimit(id, -3).error_message(), HasSubstr("time_limit_seconds is -3"));
  v1::UpdateJobRequest nothing;
  nothing.set_job_id(id);
  EXPECT_THAT(Update(nothing).error_message(), HasSubstr("give one of them"));
  EXPECT_EQ(SetPriority("job-9", 1).error_code(), grpc::StatusCode::NOT_FOUND);
  Cancel(id);
  EXPECT_EQ(SetTimeLimit(id, 3).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace espalier
