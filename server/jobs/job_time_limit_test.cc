#include "server/jobs/job_time_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kGrace = absl::Seconds(60);

LimitedJob AtItsLimit() {
  return {.limit = absl::Hours(2),
          .ran = absl::Hours(2),
          .steps_done = 50,
          .total_steps = 100,
          .checkpoint_step = 40};
}

TEST(JobTimeLimit, NothingHappensBeforeTheLimit) {
  LimitedJob job = AtItsLimit();
  job.ran = absl::Hours(2) - absl::Milliseconds(1);
  EXPECT_EQ(DecideTimeLimit(job, kGrace), LimitAction::kGoOn);
  job.ran = absl::Hours(200);
  job.limit = absl::ZeroDuration();
  EXPECT_EQ(DecideTimeLimit(job, kGrace), LimitAction::kGoOn);
}

TEST(JobTimeLimit, WhatWasTrainedIsSavedFirst) {
  LimitedJob job = AtItsLimit();
  EXPECT_EQ(DecideTimeLimit(job, kGrace), LimitAction::kAskForCheckpoint);
  job.asked = true;
  job.steps_when_asked = 50;
  EXPECT_EQ(DecideTimeLimit(job, kGrace), LimitAction::kGoOn);
  job.checkpoint_step = job.steps_done = 51;
  EXPECT_EQ(DecideTimeLimit(job, kGrace), LimitAction::kEnd);
}

TEST(JobTimeLimit, ACheckpointThatDoesNotComeIsNotWaitedForForEver) {
  LimitedJob job = AtItsLimit();
  job.asked = true;
  job.steps_when_asked = 50;
  job.since_asked = kGrace - absl::Seconds(1);
  EXPECT_EQ(DecideTimeLimit(job, kGrace), LimitAction::kGoOn);
  job.since_asked = kGrace;
  EXPECT_EQ(DecideTimeLimit(job, kGrace), LimitAction::kEnd);
  EXPECT_THAT(TimeLimitError("job-7", job), HasSubstr("no checkpoint of step 50"));
}

TEST(JobTimeLimit, WithNothingToSaveTheJobEndsAtOnce) {
  LimitedJob job = AtItsLimit();
  job.checkpoint_step = job.steps_done;
  EXPECT_EQ(DecideTimeLimit(job, kGrace), LimitAction::kEnd);
  job.checkpoint_step = job.steps_done = 0;  // it still plans
  EXPECT_EQ(DecideTimeLimit(job, kGrace), LimitAction::kEnd);
}

TEST(JobTimeLimit, AJobWhoseStepsAreDoneMayFinish) {
  LimitedJob job = AtItsLimit();
  job.steps_done = job.total_steps;
  EXPECT_EQ(DecideTimeLimit(job, kGrace), LimitAction::kGoOn);
}

TEST(JobTimeLimit, TheErrorSaysHowToGoOn) {
  LimitedJob job = AtItsLimit();
  job.checkpoint_step = job.steps_done;
  EXPECT_EQ(TimeLimitError("job-7", job),
            "time limit: the job has had workers for 2h, and its limit is 2h; to go on from the "
            "checkpoint of step 50 for as long again: espalier jobs resume job-7");
}

TEST(JobTimeLimit, OnlyTimesAreAccepted) {
  EXPECT_TRUE(CheckTimeLimit("f", 0).ok());
  EXPECT_TRUE(CheckTimeLimit("f", 0.5).ok());
  for (const double bad : {-1.0, 1e12, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckTimeLimit("f", bad))) << bad;
  }
}

}  // namespace
}  // namespace espalier
