// Validation during training in a coordinator whose workers die and which is started again: what is
// recorded, when a job stops and which parameters it keeps.
#include <gmock/gmock.h>

#include <filesystem>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "server/artifacts/artifact_store.h"
#include "server/coordinator_fixture.h"
#include "server/fake_worker.h"
#include "server/jobs/job_runner.h"
#include "server/store/job_store.h"

namespace espalier {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// Falls until 30 steps are done, then rises.
double Overfitting(int64_t steps_done) {
  return 1 + 0.01 * static_cast<double>((steps_done - 30) * (steps_done - 30));
}

class ValidationTest : public CoordinatorFixture {
 protected:
  // Validates every 5 steps.
  v1::SubmitRequest Validated() {
    v1::SubmitRequest request = Submission();
    request.mutable_spec()->mutable_validation()->set_every_steps(5);
    return request;
  }
  void AddSlowWorker() { AddWorker({.step = absl::Milliseconds(15), .evaluation = Overfitting}); }

  // Expects one validation after each 5 steps up to `steps`.
  static void ExpectValidations(const v1::GetJobReply& reply, int64_t steps) {
    ASSERT_EQ(reply.validations_size(), steps / 5);
    for (int i = 0; i < reply.validations_size(); ++i) {
      const int64_t done = 5 * (i + 1);
      EXPECT_EQ(reply.validations(i).step(), done - 1);
      EXPECT_NEAR(reply.validations(i).values().at("val_loss"), Overfitting(done), 1e-9);
    }
  }

  std::string Refusal(const v1::SubmitRequest& request) {
    grpc::ClientContext context;
    v1::SubmitReply reply;
    const grpc::Status status = training_->Submit(&context, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    return status.error_message();
  }
};

TEST_F(ValidationTest, ResultsAreRecordedAndWatchedInOrder) {
  AddWorker({.evaluation = Overfitting});
  AddWorker({.evaluation = Overfitting});
  const std::string id = Submit(Validated());
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  ExpectValidations(reply, kSteps);
  EXPECT_EQ(reply.job().best_step(), 30);
  EXPECT_NEAR(reply.job().best_validation().at("val_loss"), 1, 1e-9);
  EXPECT_FALSE(reply.job().stopped_early());
  EXPECT_NEAR(reply.job().evaluation().at("loss"), Overfitting(kSteps), 1e-9) << "the last model's";
  EXPECT_EQ(reply.job().checkpoint_step(), kSteps);

  v1::WatchRequest watch;
  watch.set_job_id(id);
  watch.set_from_step(20);
  int64_t step = 19, validations = 0;
  const absl::Status watched = coordinator_->jobs().Watch(
      watch,
      [&](const v1::JobEvent& event) {
        if (event.has_step()) {
          EXPECT_EQ(event.step().step(), ++step);
        }
        if (event.has_validation()) {
          EXPECT_EQ(event.validation().step(), step) << "behind the step that it follows";
          ++validations;
        }
        return true;
      },
      [] { return false; });
  EXPECT_TRUE(watched.ok()) << watched;
  EXPECT_EQ(validations, 9) << "after 20, 25, ... 60 steps";
  EXPECT_THAT(coordinator_->metrics().Expose(),
              HasSubstr("espalier_job_validation_duration_seconds_count 12"));
}

TEST_F(ValidationTest, OneMoreComesAfterTheLastStep) {
  AddWorker({.evaluation = Overfitting});
  v1::SubmitRequest request = Validated();
  request.mutable_spec()->mutable_validation()->set_every_steps(25);
  const v1::GetJobReply reply = WaitForEnd(Submit(request));
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  std::vector<int64_t> after;
  for (const v1::StepReport& report : reply.validations()) after.push_back(report.step());
  EXPECT_EQ(after, (std::vector<int64_t>{24, 49, 59}));
}

TEST_F(ValidationTest, TrainingStopsEarlyAndTheBestModelIsRegistered) {
  AddWorker({.evaluation = Overfitting});
  AddWorker({.evaluation = Overfitting});
  v1::SubmitRequest request = Validated();
  request.mutable_spec()->mutable_early_stopping()->set_patience(3);
  request.mutable_spec()->mutable_early_stopping()->set_keep_best(true);
  // Checkpoints of best validations only.
  request.mutable_spec()->set_checkpoint_every_steps(0);
  const std::string id = Submit(request);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_TRUE(reply.job().stopped_early());
  EXPECT_EQ(reply.job().steps_done(), 45) << "three validations behind the best";
  EXPECT_EQ(reply.job().total_steps(), kSteps);
  ExpectValidations(reply, 45);
  EXPECT_EQ(reply.job().best_step(), 30);
  EXPECT_EQ(reply.job().checkpoint_step(), 30) << "what is registered";
  EXPECT_NEAR(reply.job().evaluation().at("loss"), 1, 1e-9) << "the registered model's";
  EXPECT_THAT(reply.messages(), Contains(Says(v1::JobMessage::INFO,
                                              HasSubstr("stopped early after 45 of 60 steps"))));
  EXPECT_EQ(reply.job().spec().early_stopping().mode(), v1::EarlyStopping::MIN);
  EXPECT_EQ(reply.job().spec().early_stopping().monitor(), "val_loss");
  EXPECT_TRUE(coordinator_->artifacts().Find(reply.job().output_model()).ok());
}

TEST_F(ValidationTest, WithoutKeepBestTheLastModelIsRegistered) {
  AddWorker({.evaluation = Overfitting});
  v1::SubmitRequest request = Validated();
  request.mutable_spec()->mutable_early_stopping()->set_patience(2);
  const v1::GetJobReply reply = WaitForEnd(Submit(request));
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().steps_done(), 40);
  EXPECT_EQ(reply.job().checkpoint_step(), 40);
  EXPECT_NEAR(reply.job().evaluation().at("loss"), Overfitting(40), 1e-9);
}

// The best checkpoint is none of the last two when the worker dies.
TEST_F(ValidationTest, AfterALostWorkerTheResultIsTheSame) {
  AddSlowWorker();
  AddSlowWorker();
  v1::SubmitRequest request = Validated();
  request.mutable_spec()->mutable_early_stopping()->set_patience(5);
  request.mutable_spec()->mutable_early_stopping()->set_keep_best(true);
  request.mutable_spec()->set_checkpoint_every_steps(6);
  const std::string id = Submit(request);
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 42; });
  workers_[1]->Kill();
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_GE(reply.job().attempts(), 2);
  EXPECT_GE(workers_[0]->first_step_of_last_run(), 30);
  EXPECT_EQ(reply.job().steps_done(), 55);
  ExpectValidations(reply, 55);
  EXPECT_EQ(reply.job().best_step(), 30);
  EXPECT_TRUE(reply.job().stopped_early());
  EXPECT_NEAR(reply.job().evaluation().at("loss"), 1, 1e-9);
  EXPECT_TRUE(coordinator_->artifacts().Find(reply.job().output_model()).ok());
}

TEST_F(ValidationTest, AfterARestartOfTheCoordinatorTheResultIsTheSame) {
  AddSlowWorker();
  v1::SubmitRequest request = Validated();
  request.mutable_spec()->mutable_early_stopping()->set_patience(4);
  request.mutable_spec()->mutable_early_stopping()->set_keep_best(true);
  const std::string id = Submit(request);
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 40; });
  const std::string address = coordinator_->grpc_address();
  coordinator_.reset();
  StartCoordinator(address);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().attempts(), 2);
  EXPECT_EQ(reply.job().steps_done(), 50);
  ExpectValidations(reply, 50);
  EXPECT_EQ(reply.job().best_step(), 30);
  EXPECT_NEAR(reply.job().evaluation().at("loss"), 1, 1e-9);
}

TEST_F(ValidationTest, ALostBestCheckpointIsTrainedAgain) {
  AddSlowWorker();
  v1::SubmitRequest request = Validated();
  request.mutable_spec()->mutable_early_stopping()->set_keep_best(true);
  request.mutable_spec()->set_checkpoint_every_steps(6);
  request.mutable_spec()->mutable_record()->set_mode(v1::RecordOptions::OFF);
  const std::string id = Submit(request);
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 48; });
  Cancel(id);
  const std::string folder = CheckpointsOf(id) + "/attempt-1/";
  ASSERT_TRUE(Eventually([&] {
    const auto kept = std::filesystem::directory_iterator(folder);
    return std::distance(begin(kept), end(kept)) == 3;
  })) << "the best besides the last two";
  ASSERT_TRUE(std::filesystem::exists(folder + "step-30"));
  std::filesystem::remove_all(folder + "step-30");
  Resume(id);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  ExpectWholeCurve(reply);
  ExpectValidations(reply, kSteps);
  EXPECT_EQ(reply.job().best_step(), 30);
  EXPECT_THAT(reply.messages(),
              Contains(Says(v1::JobMessage::WARNING,
                            HasSubstr("best validation, of step 30, is damaged"))));
  EXPECT_NEAR(reply.job().evaluation().at("loss"), 1, 1e-9);
}

TEST_F(ValidationTest, AFullDiskDelaysTheBestCheckpointButDoesNotLoseIt) {
  AddWorker({.evaluation = Overfitting});
  v1::SubmitRequest request = Validated();
  request.mutable_spec()->mutable_early_stopping()->set_keep_best(true);
  request.mutable_spec()->set_checkpoint_every_steps(0);
  files_.set_free_bytes(0);
  const std::string id = Submit(request);
  WaitFor(id, [](const v1::Job& job) { return !job.checkpoints_paused().empty(); });
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_EQ(Get(id).job().steps_done(), 5) << "it waits before the next step";
  files_.set_free_bytes(int64_t{1} << 40);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().best_step(), 30);
  EXPECT_NEAR(reply.job().evaluation().at("loss"), 1, 1e-9);
}

TEST_F(ValidationTest, WhatCannotBeIsRefused) {
  v1::SubmitRequest request = Validated();
  request.mutable_spec()->mutable_early_stopping()->set_monitor("val_acuracy");
  EXPECT_THAT(Refusal(request), HasSubstr("spec.early_stopping.monitor: a validation does not "
                                          "report 'val_acuracy'; it reports val_loss"));
  request = Validated();
  request.mutable_spec()->mutable_dataset()->set_holdout_fraction(0);
  EXPECT_THAT(Refusal(request), HasSubstr("no held-out examples"));
  request = Validated();
  request.mutable_spec()->mutable_validation()->set_every_epochs(2);
  EXPECT_THAT(Refusal(request), HasSubstr("give one of them"));
  request = Submission();
  request.mutable_spec()->mutable_early_stopping()->set_patience(2);
  EXPECT_THAT(Refusal(request), HasSubstr("it needs validation"));
  request = Validated();
  *request.mutable_spec()->mutable_validation()->mutable_dataset() = request.spec().dataset();
  EXPECT_THAT(Refusal(request), HasSubstr("give one of them"));
  request.mutable_spec()->mutable_dataset()->set_holdout_fraction(0);
  EXPECT_THAT(Refusal(request), HasSubstr("leave them unset"));
}

// A dataset of its own, opened by the workers, and epochs.
TEST_F(ValidationTest, AnotherDatasetMayBeValidated) {
  AddWorker({.evaluation = Overfitting});
  v1::SubmitRequest request = Submission();
  v1::TrainingSpec& spec = *request.mutable_spec();
  spec.mutable_dataset()->set_holdout_fraction(0);
  v1::Dataset& dataset = *spec.mutable_validation()->mutable_dataset();
  const std::string other = text_ + "-other";
  std::ofstream(other) << std::string(100, 'e');
  dataset.set_uri(other);
  dataset.set_format(v1::Dataset::TEXT);
  spec.set_batch_size(64);  // 511 windows: 7 steps an epoch
  spec.mutable_validation()->set_every_epochs(2);
  const v1::GetJobReply reply = WaitForEnd(Submit(request));
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  std::vector<int64_t> after;
  for (const v1::StepReport& report : reply.validations()) after.push_back(report.step() + 1);
  EXPECT_EQ(after, (std::vector<int64_t>{14, 28, 42, 56, 60}));
  EXPECT_EQ(reply.job().evaluation_examples(), 12) << "12 windows, less than a batch";
}

}  // namespace
}  // namespace espalier
