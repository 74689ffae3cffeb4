#include "server/jobs/job_lifecycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "proto/states.h"

namespace espalier {
namespace {

using Kind = JobEventKind;

struct Row {
  std::string what;
  JobLifecycle before;
  JobLifecycleEvent event;
  v1::JobState state;
  std::vector<JobAction> actions;
};

JobLifecycle In(v1::JobState state, bool attempt_running, int attempts = 1,
                int64_t checkpoint = 0) {
  JobLifecycle life;
  life.state = state;
  life.attempt_running = attempt_running;
  life.attempts = attempts;
  life.checkpoint_step = checkpoint;
  return life;
}

class JobLifecycleTable : public ::testing::TestWithParam<Row> {};

TEST_P(JobLifecycleTable, Decides) {
  const Row& row = GetParam();
  auto decision = Decide(row.before, row.event, JobPolicy());
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_EQ(StateName(decision->life.state), StateName(row.state));
  EXPECT_EQ(decision->actions, row.actions);
}

const std::vector<JobAction> kNothing;
const std::vector<JobAction> kBegin = {JobAction::kRollBack, JobAction::kStartAttempt};
const std::vector<JobAction> kRelease = {JobAction::kReleaseWorkers};

JobLifecycleEvent Of(Kind kind, int32_t attempt = 1, int64_t step = 0) {
  return {.kind = kind, .attempt = attempt, .step = step, .reason = "because"};
}

INSTANTIATE_TEST_SUITE_P(
    Table, JobLifecycleTable,
    ::testing::Values(
        Row{"QueuedStarts", In(v1::QUEUED, false, 0), Of(Kind::kWorkersReady), v1::PLANNING,
            kBegin},
        Row{"RecoveringStartsAnAttempt", In(v1::RECOVERING, false), Of(Kind::kWorkersReady),
            v1::RECOVERING, kBegin},
        Row{"ResumedWaitsForItsOldAttempt", In(v1::QUEUED, true), Of(Kind::kWorkersReady),
            v1::QUEUED, kNothing},
        Row{"RunningNeedsNoWorkers", In(v1::RUNNING, true), Of(Kind::kWorkersReady), v1::RUNNING,
            kNothing},
        Row{"PlanningRuns", In(v1::PLANNING, true), Of(Kind::kRunning), v1::RUNNING, kNothing},
        Row{"RecoveryEnds", In(v1::RECOVERING, true, 2), Of(Kind::kRunning, 2), v1::RUNNING,
            kNothing},
        Row{"StaleRunning", In(v1::RECOVERING, true, 2), Of(Kind::kRunning, 1), v1::RECOVERING,
            kNothing},
        Row{"RunningLosesWorker", In(v1::RUNNING, true), Of(Kind::kWorkersLost), v1::RECOVERING,
            kRelease},
        Row{"PlanningLosesWorker", In(v1::PLANNING, true), Of(Kind::kWorkersLost), v1::RECOVERING,
            kRelease},
        Row{"StaleLoss", In(v1::RUNNING, true, 3), Of(Kind::kWorkersLost, 2), v1::RUNNING,
            kNothing},
        Row{"OwnFaultFailsAtOnce", In(v1::RUNNING, true), Of(Kind::kAttemptFailed), v1::FAILED,
            kRelease},
        Row{"TooFewWorkersAreWaitedFor", In(v1::RECOVERING, true, 2), Of(Kind::kTooFewWorkers, 2),
            v1::RECOVERING, kRelease},
        Row{"DamagedCheckpointIsRecoveredFrom", In(v1::RECOVERING, true, 2, 40),
            Of(Kind::kDamaged, 2, 20), v1::RECOVERING, kRelease},
        Row{"CancelledStaysSoWithADamagedCheckpoint", In(v1::CANCELLED, true, 2, 40),
            Of(Kind::kDamaged, 2, 20), v1::CANCELLED, kRelease},
        Row{"Finishes", In(v1::RUNNING, true), Of(Kind::kFinished), v1::SUCCEEDED, kRelease},
        Row{"CancelQueued", In(v1::QUEUED, false, 0), Of(Kind::kCancel), v1::CANCELLED, kNothing},
        Row{"CancelRunning",
            In(v1::RUNNING, true),
            Of(Kind::kCancel),
            v1::CANCELLED,
            {JobAction::kStopAttempt}},
        Row{"CancelTwice", In(v1::CANCELLED, true), Of(Kind::kCancel), v1::CANCELLED, kNothing},
        Row{"CancelledThenFinishedStaysCancelled", In(v1::CANCELLED, true), Of(Kind::kFinished),
            v1::CANCELLED, kRelease},
        Row{"CancelledAttemptEnds", In(v1::CANCELLED, true), Of(Kind::kStopped), v1::CANCELLED,
            kRelease},
        Row{"ResumedAttemptEnds", In(v1::QUEUED, true), Of(Kind::kStopped), v1::QUEUED, kRelease},
        Row{"ResumeFailed", In(v1::FAILED, false), Of(Kind::kResume), v1::QUEUED, kNothing},
        Row{"ResumeCancelled", In(v1::CANCELLED, false), Of(Kind::kResume), v1::QUEUED, kNothing},
        Row{"RestartRunning", In(v1::RUNNING, false), Of(Kind::kRestart), v1::RECOVERING, kNothing},
        Row{"RestartPlanning", In(v1::PLANNING, false), Of(Kind::kRestart), v1::RECOVERING,
            kNothing},
        Row{"RestartQueued", In(v1::QUEUED, false, 0), Of(Kind::kRestart), v1::QUEUED, kNothing},
        Row{"RestartSucceeded", In(v1::SUCCEEDED, false), Of(Kind::kRestart), v1::SUCCEEDED,
            kNothing}),
    [](const auto& info) { return info.param.what; });

// Otherwise a disk that damages every checkpoint would keep a job running for ever.
TEST(JobLifecycle, DamagedCheckpointsAreNoProgress) {
  JobLifecycle life = In(v1::RECOVERING, true, 2, 40);
  life.attempt_progressed = true;
  life.attempts_without_progress = 3;
  auto decision = Decide(life, Of(Kind::kDamaged, 2, 20), {.max_attempts_without_progress = 5});
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_EQ(decision->life.checkpoint_step, 20);
  EXPECT_EQ(decision->message->text(), "because; going back to step 20");
  EXPECT_EQ(decision->message->level(), v1::JobMessage::WARNING);
  decision = Decide(life, Of(Kind::kDamaged, 2, 60), {.max_attempts_without_progress = 5});
  EXPECT_EQ(decision->message->text(),
            "because; going on from step 60, without the reports before it");
  decision = Decide(life, Of(Kind::kDamaged, 2, 0), {.max_attempts_without_progress = 4});
  EXPECT_EQ(decision->life.state, v1::FAILED);
}

// The runner uses IsActive to decide whether an attempt's results count.
TEST(JobLifecycle, FinishedAttemptEndsOnlyActiveJobs) {
  for (int number = v1::JobState_MIN; number <= v1::JobState_MAX; ++number) {
    if (!v1::JobState_IsValid(number) || number == v1::SUCCEEDED) continue;
    const auto state = static_cast<v1::JobState>(number);
    const auto decision = Decide(In(state, true), Of(Kind::kFinished), {});
    ASSERT_TRUE(decision.ok()) << decision.status();
    EXPECT_EQ(decision->life.state, IsActive(state) ? v1::SUCCEEDED : state);
  }
}

TEST(JobLifecycle, RefusesInvalidCancelAndResume) {
  for (v1::JobState state : {v1::SUCCEEDED, v1::FAILED}) {
    EXPECT_EQ(Decide(In(state, false), Of(Kind::kCancel), {}).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
  for (v1::JobState state : {v1::QUEUED, v1::RUNNING, v1::SUCCEEDED}) {
    EXPECT_EQ(Decide(In(state, false), Of(Kind::kResume), {}).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

TEST(JobLifecycle, GivesUpAfterAttemptsWithoutProgressWithAllReasons) {
  JobPolicy policy{.max_attempts_without_progress = 3};
  JobLifecycle life = In(v1::QUEUED, false, 0);
  for (int attempt = 1; attempt <= 3; ++attempt) {
    life = Decide(life, Of(Kind::kWorkersReady), policy)->life;
    auto decision = Decide(
        life,
        {.kind = Kind::kWorkersLost, .attempt = attempt, .reason = "w" + std::to_string(attempt)},
        policy);
    life = decision->life;
    if (attempt < 3) {
      EXPECT_EQ(life.state, v1::RECOVERING);
      continue;
    }
    EXPECT_EQ(life.state, v1::FAILED);
    EXPECT_THAT(decision->error, ::testing::AllOf(::testing::HasSubstr("attempt 1: w1"),
                                                  ::testing::HasSubstr("attempt 3: w3")));
  }
}

TEST(JobLifecycle, CheckpointResetsAttemptCount) {
  JobPolicy policy{.max_attempts_without_progress = 2};
  JobLifecycle life = In(v1::QUEUED, false, 0);
  for (int attempt = 1; attempt <= 6; ++attempt) {
    life = Decide(life, Of(Kind::kWorkersReady), policy)->life;
    life = Decide(life, Of(Kind::kCheckpointed, attempt, attempt * 10), policy)->life;
    life = Decide(life, Of(Kind::kWorkersLost, attempt), policy)->life;
    ASSERT_EQ(life.state, v1::RECOVERING) << "attempt " << attempt;
    EXPECT_EQ(life.checkpoint_step, attempt * 10);
  }
}

// Lack of memory does not count against the job, however often workers come and go.
TEST(JobLifecycle, AttemptsWithTooFewWorkersAreNotCounted) {
  JobPolicy policy{.max_attempts_without_progress = 2};
  JobLifecycle life = In(v1::QUEUED, false, 0);
  life = Decide(life, Of(Kind::kWorkersReady), policy)->life;
  life = Decide(life, Of(Kind::kWorkersLost, 1), policy)->life;
  for (int attempt = 2; attempt <= 6; ++attempt) {
    life = Decide(life, Of(Kind::kWorkersReady), policy)->life;
    const auto decision = Decide(life, Of(Kind::kTooFewWorkers, attempt), policy);
    life = decision->life;
    ASSERT_EQ(life.state, v1::RECOVERING) << "attempt " << attempt;
    EXPECT_EQ(decision->message->text(), "because");
    EXPECT_EQ(life.attempts_without_progress, 1);
  }
}

// Invariants under any order of events: one attempt at a time, attempt numbers and checkpoints
// (unless one is damaged) never decrease, and a finished job stays so unless it is resumed.
TEST(JobLifecycle, HoldsItsInvariantsUnderRandomEvents) {
  std::mt19937 random(7);
  for (int run = 0; run < 200; ++run) {
    JobLifecycle life;
    for (int i = 0; i < 100; ++i) {
      const JobLifecycleEvent event{.kind = static_cast<Kind>(random() % 12),
                                    .attempt = life.attempts - static_cast<int>(random() % 2),
                                    .step = static_cast<int64_t>(random() % 100),
                                    .reason = "r"};
      auto decision = Decide(life, event, {.max_attempts_without_progress = 3});
      if (!decision.ok()) continue;
      const JobLifecycle& next = decision->life;
      for (JobAction action : decision->actions) {
        if (action == JobAction::kStartAttempt) {
          EXPECT_FALSE(life.attempt_running);
          EXPECT_EQ(next.attempts, life.attempts + 1);
        }
        if (action == JobAction::kReleaseWorkers) {
          EXPECT_TRUE(life.attempt_running);
        }
      }
      EXPECT_GE(next.attempts, life.attempts);
      if (event.kind != Kind::kDamaged) {
        EXPECT_GE(next.checkpoint_step, life.checkpoint_step);
      }
      if (IsOver(life.state) && event.kind != Kind::kResume) {
        EXPECT_EQ(next.state, life.state);
      }
      if (next.state == v1::FAILED && life.state != v1::FAILED) {
        EXPECT_FALSE(decision->error.empty());
      }
      life = next;
    }
  }
}

}  // namespace
}  // namespace espalier
