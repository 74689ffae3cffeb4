// Recordings of jobs on a coordinator: experiments and versions, checkpoints that stay, and how
// runs are found, shown and compared.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <fstream>

#include "base/sha256.h"
#include "base/version.h"
#include "espalier/v1/recording.grpc.pb.h"
#include "server/coordinator_fixture.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

class RecordingTest : public CoordinatorFixture {
 protected:
  v1::SubmitRequest Named(const std::string& name, int64_t steps = kSteps) {
    v1::SubmitRequest request = Recorded();
    request.mutable_spec()->set_name(name);
    request.mutable_spec()->set_steps(steps);
    return request;
  }
  std::unique_ptr<v1::Recordings::Stub> Recordings() {
    return v1::Recordings::NewStub(
        grpc::CreateChannel(coordinator_->grpc_address(), grpc::InsecureChannelCredentials()));
  }
  v1::Recording Run(const std::string& name) {
    grpc::ClientContext context;
    v1::GetRunRequest request;
    request.set_run(name);
    v1::GetRunReply reply;
    const grpc::Status status = Recordings()->Get(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.run();
  }
  grpc::Status RunError(const std::string& name) {
    grpc::ClientContext context;
    v1::GetRunRequest request;
    request.set_run(name);
    v1::GetRunReply reply;
    return Recordings()->Get(&context, request, &reply);
  }
  // "tiny@1=job-1" of all pages.
  std::vector<std::string> Runs(const std::string& name, int page_size = 0) {
    std::vector<std::string> runs;
    v1::ListRunsRequest request;
    request.set_run(name);
    request.set_page_size(page_size);
    do {
      grpc::ClientContext context;
      v1::ListRunsReply reply;
      const grpc::Status status = Recordings()->List(&context, request, &reply);
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_LE(reply.runs_size(), page_size == 0 ? 1000 : page_size);
      for (const v1::Recording& run : reply.runs()) {
        runs.push_back(absl::StrCat(run.experiment(), "@", run.version(), "=", run.job().id()));
      }
      request.set_page_token(reply.next_page_token());
    } while (!request.page_token().empty());
    return runs;
  }
  v1::DiffRunsReply Diff(const std::string& a, const std::string& b) {
    grpc::ClientContext context;
    v1::DiffRunsRequest request;
    request.set_a(a);
    request.set_b(b);
    v1::DiffRunsReply reply;
    const grpc::Status status = Recordings()->Diff(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  void Delete(const std::string& id) {
    v1::DeleteJobRequest request;
    request.set_job_id(id);
    grpc::ClientContext context;
    v1::DeleteJobReply reply;
    const grpc::Status status = training_->Delete(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  static std::vector<int64_t> StepsOf(const v1::Recording& run) {
    std::vector<int64_t> steps;
    for (const v1::RecordedCheckpoint& checkpoint : run.checkpoints()) {
      steps.push_back(checkpoint.steps_done());
    }
    return steps;
  }
  static std::vector<std::string> FieldsOf(const v1::DiffRunsReply& diff) {
    std::vector<std::string> fields;
    for (const v1::RunDifference& difference : diff.differences()) {
      fields.push_back(difference.field());
    }
    return fields;
  }
};

TEST_F(RecordingTest, VersionsAreNotGivenAgain) {
  const std::string first = Submit(Named("lm")), second = Submit(Named("lm"));
  const std::string other = Submit(Named("digits")), unnamed = Submit(Named(""));
  EXPECT_THAT(Runs(""), ElementsAre("digits@1=" + other, unnamed + "@1=" + unnamed, "lm@1=" + first,
                                    "lm@2=" + second));
  EXPECT_THAT(Runs("", 1), ElementsAre("digits@1=" + other, unnamed + "@1=" + unnamed,
                                       "lm@1=" + first, "lm@2=" + second));
  EXPECT_THAT(Runs("l*"), ElementsAre("lm@1=" + first, "lm@2=" + second));
  EXPECT_EQ(Get(second).job().experiment(), "lm");
  EXPECT_EQ(Get(second).job().version(), 2);
  for (const std::string& id : {second, other}) {
    Cancel(id);
    Delete(id);
  }
  EXPECT_THAT(Runs("lm"), ElementsAre("lm@1=" + first));
  const grpc::Status gone = RunError("lm@2");
  EXPECT_EQ(gone.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(gone.error_message(), HasSubstr("it has 1"));
  const std::string address = coordinator_->grpc_address();
  coordinator_.reset();
  StartCoordinator(address);
  const std::string third = Submit(Named("lm"));
  EXPECT_THAT(Runs("lm"), ElementsAre("lm@1=" + first, "lm@3=" + third));
  EXPECT_EQ(Get(Submit(Named("digits"))).job().version(), 2);
}

TEST_F(RecordingTest, ARecordingHasAllCheckpointsAndWhatTheyWereMadeWith) {
  AddWorker();
  AddWorker();
  const std::string id = Submit(Recorded());
  ASSERT_EQ(WaitForEnd(id).job().state(), v1::SUCCEEDED);
  const v1::Recording run = Run("tiny");
  EXPECT_EQ(run.version(), 1);
  EXPECT_THAT(StepsOf(run), ElementsAre(10, 20, 30, 40, 50, 60));
  ASSERT_EQ(run.attempts_size(), 1);
  EXPECT_EQ(run.attempts(0).first_step(), 0);
  EXPECT_EQ(run.attempts(0).program_version(), kEspalierVersion);
  EXPECT_EQ(run.attempts(0).ranks_size(), 2);
  EXPECT_EQ(run.attempts(0).plan().devices_size(), 2);
  EXPECT_EQ(run.dataset_sha256(), Sha256Hex(std::string(4096, 'e')));
  EXPECT_EQ(run.graph_sha256().size(), 64u);
  EXPECT_DOUBLE_EQ(run.losses().first(), FakeWorker::LossOf(0));
  EXPECT_DOUBLE_EQ(run.losses().last(), FakeWorker::LossOf(kSteps - 1));
  EXPECT_EQ(run.losses().best_step(), kSteps - 1);
  EXPECT_TRUE(Eventually([&] { return Get(id).job().recorded_checkpoints() == 6; }));
  int64_t bytes = 0;
  for (const v1::RecordedCheckpoint& checkpoint : run.checkpoints()) bytes += checkpoint.bytes();
  EXPECT_EQ(Get(id).job().recorded_bytes(), bytes);
  EXPECT_GT(bytes, 6 * 2 * 256 * 4);

  const std::string address = coordinator_->grpc_address();
  coordinator_.reset();
  StartCoordinator(address);
  EXPECT_THAT(StepsOf(Run("tiny@1")), ElementsAre(10, 20, 30, 40, 50, 60));
  EXPECT_EQ(Run(id).attempts_size(), 1);
  Delete(id);
  EXPECT_FALSE(std::filesystem::exists(CheckpointsOf(id)));
  EXPECT_EQ(RunError(id).error_code(), grpc::StatusCode::NOT_FOUND);
}

// With 115 steps an epoch.
TEST_F(RecordingTest, AJobTakesCheckpointsAtTheEndsOfItsEpochs) {
  AddWorker({.step = absl::Milliseconds(4), .checkpoint_seconds = 0.02});
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->set_steps(600);
  request.mutable_spec()->set_checkpoint_every_steps(0);
  request.mutable_spec()->mutable_record()->set_overhead(0.2);
  const v1::GetJobReply reply = WaitForEnd(Submit(request));
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  const v1::Recording run = Run("tiny");
  const std::vector<int64_t> steps = StepsOf(run);
  EXPECT_THAT(steps, IsSupersetOf({230, 345, 460, 575, 600}));
  EXPECT_LE(steps.size(), 600 * 0.004 * 0.2 / 0.02 + 2) << "but the first and the last";
  EXPECT_EQ(run.attempts_size(), 1);
  EXPECT_EQ(run.dataset_sha256().size(), 64u);
}

TEST_F(RecordingTest, AJobHasAtMostTheCheckpointsThatItCanAfford) {
  AddWorker({.step = absl::Milliseconds(4), .checkpoint_seconds = 60});
  AddWorker({.step = absl::Milliseconds(4)});
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->set_steps(600);
  request.mutable_spec()->set_checkpoint_every_steps(0);
  const v1::GetJobReply reply = WaitForEnd(Submit(request));
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_LE(StepsOf(Run("tiny")).size(), 2u) << "nobody knew what the first one costs";
}

TEST_F(RecordingTest, APeriodOfCheckpointsStaysThatOfAJobThatIsRecorded) {
  AddWorker();
  ASSERT_EQ(WaitForEnd(Submit(Submission())).job().state(), v1::SUCCEEDED);
  EXPECT_THAT(StepsOf(Run("tiny")), IsSupersetOf({10, 20, 30, 40, 50, 60}));
}

TEST_F(RecordingTest, OfAShortPeriodWithManyCheckpointsSomeStay) {
  AddWorker();
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->set_steps(1000);
  request.mutable_spec()->set_checkpoint_every_steps(1);
  const std::string id = Submit(request);
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 30; });
  Cancel(id);
  ASSERT_EQ(WaitForEnd(id).job().state(), v1::CANCELLED);
  const std::vector<int64_t> steps = StepsOf(Run("tiny"));
  ASSERT_GE(steps.size(), 10u);
  for (size_t i = 1; i + 2 < steps.size(); ++i) EXPECT_EQ(steps[i] - steps[i - 1], 2);
}

TEST_F(RecordingTest, AWorkerThatWasTooBusyForACheckpointTakesTheNextOne) {
  AddWorker({.step = absl::Milliseconds(4), .unheard_checkpoint_requests = 1});
  v1::SubmitRequest request = Submission();
  request.mutable_spec()->set_steps(600);
  request.mutable_spec()->set_checkpoint_every_steps(0);
  request.mutable_spec()->mutable_record()->set_overhead(0.9);
  const v1::GetJobReply reply = WaitForEnd(Submit(request));
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_GE(StepsOf(Run("tiny")).size(), 3u);
}

TEST_F(RecordingTest, LimitsThinARecordingEvenly) {
  AddWorker({.step = absl::Milliseconds(2)});
  const std::string whole = Submit(Named("whole", 200));
  ASSERT_EQ(WaitForEnd(whole).job().state(), v1::SUCCEEDED);
  const int64_t one = Run("whole").checkpoints(0).bytes();

  v1::SubmitRequest request = Named("thinned", 200);
  request.mutable_spec()->mutable_record()->set_max_bytes(8 * one);
  v1::GetJobReply reply = WaitForEnd(Submit(request));
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  const v1::Recording thinned = Run("thinned");
  std::vector<int64_t> steps = StepsOf(thinned);
  EXPECT_LE(steps.size(), 8u);
  EXPECT_GE(steps.size(), 5u);
  EXPECT_EQ(steps.back(), 200);
  EXPECT_EQ(steps[steps.size() - 2], 190);
  EXPECT_EQ(steps[0], steps[1] - steps[0]) << "even distances";
  EXPECT_THAT(reply.messages(), Contains(Says(v1::JobMessage::WARNING,
                                              AllOf(HasSubstr("the recording takes more than"),
                                                    HasSubstr("checkpoints were removed")))));

  request = Named("last", 200);
  request.mutable_spec()->mutable_record()->set_keep(3);
  ASSERT_EQ(WaitForEnd(Submit(request)).job().state(), v1::SUCCEEDED);
  EXPECT_THAT(StepsOf(Run("last")), ElementsAre(180, 190, 200));
}

TEST_F(RecordingTest, OldRecordingsMakeRoomForNewOnes) {
  AddWorker({.step = absl::Milliseconds(2)});
  const std::string first = Submit(Named("first"));
  ASSERT_EQ(WaitForEnd(first).job().state(), v1::SUCCEEDED);
  const int64_t one = Run("first").checkpoints(0).bytes();
  workers_.clear();
  coordinator_.reset();
  CoordinatorOptions options;
  options.recordings_bytes = 9 * one + one / 2;  // of the 12 of two jobs
  StartCoordinator("127.0.0.1:0", options);
  AddWorker({.step = absl::Milliseconds(2)});
  const std::string second = Submit(Named("second"));
  ASSERT_EQ(WaitForEnd(second).job().state(), v1::SUCCEEDED);
  EXPECT_TRUE(Eventually([&] { return StepsOf(Run("first")).size() == 3; }));
  EXPECT_THAT(StepsOf(Run("first")), ElementsAre(40, 50, 60)) << "no more than needed";
  EXPECT_THAT(StepsOf(Run("second")), ElementsAre(10, 20, 30, 40, 50, 60));
  EXPECT_TRUE(Eventually([&] {
    const auto messages = Get(first).messages();
    return std::any_of(messages.begin(), messages.end(), [](const v1::JobMessage& message) {
      return message.text().find("all recordings together take more than") != std::string::npos;
    });
  }));
}

TEST_F(RecordingTest, TheRecordingOfTheJobThatEndedFirstGoesBeforeLaterOnesAreThinned) {
  AddWorker({.step = absl::Milliseconds(2)});
  for (const char* name : {"first", "second", "third"}) {
    ASSERT_EQ(WaitForEnd(Submit(Named(name))).job().state(), v1::SUCCEEDED);
  }
  CoordinatorOptions options;
  const int64_t one = Run("first").checkpoints(0).bytes();
  options.recordings_bytes = 11 * one + one / 2;
  workers_.clear();
  coordinator_.reset();
  StartCoordinator("127.0.0.1:0", options);
  EXPECT_TRUE(Eventually([&] { return StepsOf(Run("second")).size() == 4; }));
  EXPECT_THAT(StepsOf(Run("first")), ElementsAre());
  EXPECT_THAT(StepsOf(Run("second")), ElementsAre(20, 40, 50, 60));
  EXPECT_THAT(StepsOf(Run("third")), ElementsAre(10, 20, 30, 40, 50, 60));
}

// Otherwise the next model or dataset would find no room.
TEST_F(RecordingTest, OldRecordingsLeaveAPartOfTheDiskFree) {
  workers_.clear();
  coordinator_.reset();
  std::atomic<int64_t> free_bytes = 1000;
  CoordinatorOptions options;
  options.disk = [&] { return DiskRoom{free_bytes, 10'000}; };
  StartCoordinator("127.0.0.1:0", options);
  AddWorker({.step = absl::Milliseconds(2)});
  const std::string id = Submit(Named("first"));
  ASSERT_EQ(WaitForEnd(id).job().state(), v1::SUCCEEDED);
  EXPECT_TRUE(Eventually([&] { return Get(id).job().recorded_checkpoints() == 6; }));
  free_bytes = 199;
  EXPECT_TRUE(Eventually([&] { return Get(id).job().recorded_checkpoints() == 0; }));
  EXPECT_FALSE(std::filesystem::exists(CheckpointsOf(id) + "/attempt-1/step-60"));
  EXPECT_THAT(Get(id).messages(),
              Contains(Says(v1::JobMessage::WARNING, HasSubstr("the disk has less than"))));
  coordinator_.reset();  // it uses free_bytes
}

TEST_F(RecordingTest, AModelThatFindsNoRoomTakesThatOfTheRecording) {
  AddWorker({.step = absl::Milliseconds(2)});
  files_.Hold("model.safetensors");
  const std::string id = Submit(Named("tiny", 100));
  ASSERT_TRUE(Eventually([&] { return files_.held() == 1; }));
  const int64_t before = Get(id).job().recorded_checkpoints();
  files_.set_free_bytes(0);
  files_.Release();
  EXPECT_TRUE(Eventually([&] { return Get(id).job().recorded_checkpoints() < before; }));
  files_.set_free_bytes(int64_t{1} << 40);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(StepsOf(Run("tiny")).back(), 100);
}

TEST_F(RecordingTest, AFullDiskThinsTheRecordingBeforeCheckpointsArePaused) {
  AddWorker({.step = absl::Milliseconds(5)});
  const std::string id = Submit(Named("tiny", 300));
  WaitFor(id, [](const v1::Job& job) { return job.recorded_checkpoints() >= 8; });
  files_.set_free_bytes(0);
  const auto thinned = HasSubstr("the disk is full, and the recording makes room");
  EXPECT_TRUE(Eventually([&] {
    const auto messages = Get(id).messages();
    return std::any_of(messages.begin(), messages.end(), [](const v1::JobMessage& message) {
      return message.text().find("the recording makes room") != std::string::npos;
    });
  }));
  files_.set_free_bytes(int64_t{1} << 40);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().attempts(), 1);
  EXPECT_EQ(reply.reports_size(), 300);
  // Checkpoints are paused once nothing is left to thin out, which a slow machine comes to.
  std::string said;
  for (const v1::JobMessage& message : reply.messages()) said += message.text() + "\n";
  EXPECT_LT(said.find("the recording makes room"), said.find("checkpoints are paused")) << said;
  EXPECT_THAT(reply.messages(), Contains(Says(v1::JobMessage::WARNING, thinned)));
  EXPECT_EQ(StepsOf(Run("tiny")).back(), 300);
}

// The steps after a rollback are the new attempt's, and so are their checkpoints.
TEST_F(RecordingTest, WhatWasTrainedAgainIsNotInTheRecordingTwice) {
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Recorded());
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 30; });
  Cancel(id);
  const int64_t step = WaitForEnd(id).job().checkpoint_step();
  // As left behind by a coordinator that was killed before its record knew it.
  const std::string attempt = CheckpointsOf(id) + "/attempt-1";
  for (const auto& entry : std::filesystem::directory_iterator(attempt)) {
    if (!std::filesystem::exists(entry.path() / "manifest.json")) continue;
    std::filesystem::copy(entry.path(), attempt + "/step-59-attempt-1");
    break;
  }
  EXPECT_EQ(StepsOf(Run("tiny")).back(), step);
  Resume(id);
  ASSERT_EQ(WaitForEnd(id).job().state(), v1::SUCCEEDED);
  const v1::Recording run = Run("tiny");
  EXPECT_THAT(StepsOf(run), ElementsAre(10, 20, 30, 40, 50, 60));
  ASSERT_EQ(run.attempts_size(), 2);
  EXPECT_EQ(run.attempts(1).first_step(), step);
  EXPECT_FALSE(std::filesystem::exists(attempt + "/step-59-attempt-1"));
}

TEST_F(RecordingTest, RunsDifferInWhatWasAskedAndInTheirData) {
  AddWorker();
  ASSERT_EQ(WaitForEnd(Submit(Recorded())).job().state(), v1::SUCCEEDED);
  ASSERT_EQ(WaitForEnd(Submit(Recorded())).job().state(), v1::SUCCEEDED);
  v1::DiffRunsReply diff = Diff("tiny@1", "tiny@2");
  EXPECT_THAT(FieldsOf(diff), IsEmpty());
  EXPECT_EQ(diff.first_different_step(), -1);
  EXPECT_EQ(diff.common_steps(), kSteps);

  std::ofstream(text_) << std::string(4096, 'f');
  v1::SubmitRequest request = Recorded();
  request.mutable_spec()->set_seed(7);
  request.mutable_spec()->mutable_optimizer()->mutable_learning_rate()->set_peak(0.2);
  ASSERT_EQ(WaitForEnd(Submit(request)).job().state(), v1::SUCCEEDED);
  diff = Diff("tiny@2", "tiny");
  EXPECT_THAT(FieldsOf(diff),
              ElementsAre("spec.optimizer.learning_rate.peak", "spec.seed", "dataset"));
  EXPECT_EQ(diff.differences(1).a(), "0");
  EXPECT_EQ(diff.differences(1).b(), "7");
  EXPECT_EQ(diff.differences(2).b(), Sha256Hex(std::string(4096, 'f')));
}

}  // namespace
}  // namespace espalier
