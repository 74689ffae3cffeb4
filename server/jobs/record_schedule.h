// When a recording takes another checkpoint, by FLOR's joint rule (VLDB 14(4), p. 682) on costs
// that were measured: the checkpoints of a job, with the next one, take at most a part of the
// training time, and two are at least twice as far apart as a replay needs to load.
#pragma once

#include <cstdint>

namespace espalier {

struct RecordScheduleOptions {
  double overhead = 0;         // part of the training time, below 1; 0: 1/15, as FLOR
  double restore_seconds = 0;  // to load the job so that it can train
  int64_t first_step = 0;      // steps done at the beginning
  int64_t total_steps = 0;
  int64_t epoch_steps = 0;  // 0: there are no epochs
};

// Of one attempt. Has no clock: it is told how long steps and checkpoints took.
//
// FLOR decides after each iteration of a program's main loop, which is an epoch here, and so
// checkpoints are taken at the ends of epochs. A job of a few long epochs needs some between: these
// may use a tenth of the budget.
class RecordSchedule {
 public:
  explicit RecordSchedule(const RecordScheduleOptions& options);

  // All ranks have done so many steps, the last one in so many seconds.
  void StepDone(int64_t steps_done, double seconds);
  // After how many steps the ranks are to write a checkpoint, if they are to be told now, so that
  // they hear of it `notice` seconds before; 0: not now. It is never the last step, which has one
  // in any case. 0 from Asked until that checkpoint is there.
  int64_t Due(double notice) const;
  // The ranks were told, or are about to be. Nothing is waited for if it is there already.
  void Asked(int64_t steps_done);
  // They could not be told: no checkpoint is due until one more distance is trained.
  void NotAsked();
  // Any checkpoint is there, or found no room, no matter who asked for it. `seconds`: by which it
  // has delayed the training.
  void Written(int64_t steps_done, double seconds);

 private:
  // What the next one is expected to cost.
  double ExpectedSeconds() const;

  const RecordScheduleOptions options_;
  int64_t steps_done_;
  int64_t last_;           // steps done at the last checkpoint
  int64_t asked_at_ = -1;  // steps done at the one that was asked for; -1: none
  int64_t checkpoints_ = 0;
  double trained_seconds_ = 0;
  double last_trained_seconds_ = 0;  // at the last checkpoint
  double spent_seconds_ = 0;
};

}  // namespace espalier
