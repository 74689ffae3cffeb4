// A replay that is not over: runs its segments on idle workers, as many at once as there are.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/replay.pb.h"
#include "server/replay/hashed_run.h"
#include "server/replay/replay_planner.h"
#include "server/replay/segment_runner.h"
#include "server/replay/segment_work.h"

namespace espalier {

// Returns idle workers like those that the plan was made for, by rank: of the same kind and model,
// and with as much memory. Empty: there are not enough.
std::vector<Member> MatchWorkers(const v1::Plan& plan, std::vector<Member> idle);

// What is left of a segment whose answers up to the step `answered` are stored (-1: none). Logs
// nothing if that is all.
SegmentCut LeftOf(const SegmentCut& cut, int64_t answered, const std::vector<int64_t>& checkpoints);

class RunningReplay {
 public:
  // Called after each change, from one thread at a time; `durable`: it is to be written down.
  using Publish = std::function<void(const v1::ReplayInfo& info, bool durable)>;

  // `replay` may have been interrupted by a restart. `planned`: null, it is planned first.
  RunningReplay(const ReplayTools& tools, v1::StoredReplay replay,
                std::unique_ptr<PlannedReplay> planned, Publish publish);
  ~RunningReplay();

  void Start();
  // Ends it as REPLAY_CANCELLED. Thread-safe; does not block.
  void Cancel();
  // Interrupts it, and waits: it can go on after a restart. Published states stay.
  void Stop();

 private:
  enum class Phase { kWaiting, kRunning, kOver };
  struct Segment {
    Phase phase = Phase::kWaiting;
    ReplayedRun* run = nullptr;
    v1::ReplaySegment::Kind kind = v1::ReplaySegment::TRAINING;
    // What is left of it.
    SegmentCut cut;                    // TRAINING
    std::vector<int64_t> checkpoints;  // other kinds
    std::unique_ptr<SegmentWork> work;
    std::thread thread;
    bool ended = false;  // of the thread
    absl::Status status;
    std::vector<Member> members;  // of this try
    int failures = 0;             // in a row, without progress
    int64_t rows = 0;             // of earlier tries
    // TRAINING, by earlier tries: the steps before this one are done, and what was compared.
    int64_t done_before = 0;
    v1::ReplayComparison compared;
    SegmentProgress progress;  // of this try
  };

  void Drive();
  absl::Status Prepare();
  // Compares what the runs were trained on with what is there now.
  absl::Status CheckData();
  // Takes into account how far the try that ended has come.
  static void AddTry(Segment* segment);
  // Sets what is left of the segment, by what is stored.
  absl::Status FindLeft(size_t number);
  // The checkpoint that a segment reads first.
  static int64_t FirstCheckpoint(const Segment& segment);
  // Checkpoints of the run that are not known to be damaged.
  std::vector<int64_t> UsableCheckpoints(const ReplayedRun& run) const;
  void StartWhatCan();
  // Starts it on some of the idle workers, and removes them. Otherwise returns what it waits for.
  absl::StatusOr<std::string> StartSegment(size_t number, size_t most, std::vector<Member>* idle);
  // For the segment that it has programs for, which are `program`; `members` are empty without.
  std::unique_ptr<SegmentWork> MakeWork(size_t number, std::shared_ptr<const ReplayProgram> program,
                                        const std::vector<Member>& members);
  // The programs for some of the idle workers, by rank, which `members` becomes.
  absl::StatusOr<std::shared_ptr<const ReplayProgram>> ProgramFor(const Segment& segment,
                                                                  size_t most,
                                                                  const std::vector<Member>& idle,
                                                                  std::vector<Member>* members);
  // After the segment's thread has ended.
  absl::Status TakeResult(size_t number);
  // Reads a checkpoint of the run, or its copy (then *is_copy): an error for which MeansDamage
  // holds if it is damaged or gone.
  absl::Status VerifyRecorded(const ReplayedRun& run, const std::string& directory,
                              int64_t checkpoint, size_t number, bool* is_copy);
  // If the checkpoint is damaged or gone, goes on from its copy, an earlier one, or without it;
  // otherwise returns `failure`.
  absl::Status ReplaceCheckpoint(size_t number, const absl::Status& failure);
  // Replays the steps before a difference twice, on other workers if there are any, to name the
  // operator whose results differ, and adds to the difference's cause what that tells.
  void Locate();
  // Once of these.
  absl::StatusOr<HashedRun> RunHashed(const Segment& segment, int number, int64_t step,
                                      std::vector<Member> members);
  void CancelNeedless() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Note(const std::string& note) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notes what the replay waits for, in place of what it waited for before; empty: it does not.
  void NoteWaiting(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SumRows() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What interrupted segments have left of copies of spooled checkpoints.
  void RemoveFetched();
  void Finish(v1::ReplayState state, const std::string& error);
  bool interrupted() {
    absl::MutexLock lock(&mutex_);
    return stop_ || cancelled_;
  }

  const ReplayTools tools_;
  const v1::ReplaySpec spec_;  // with its graphs, which info_ does not have
  const std::vector<std::string> job_ids_;
  const Publish publish_;

  // Of the driver. Segments' threads read the recordings of runs, which do not change.
  std::unique_ptr<PlannedReplay> planned_;
  std::map<std::string, std::shared_ptr<const ReplayProgram>> other_plans_;  // by job and devices
  std::set<std::pair<std::string, int64_t>> unreadable_;                     // job and steps done
  std::thread driver_;

  absl::Mutex mutex_;
  absl::CondVar changed_;
  v1::ReplayInfo info_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Segment>> segments_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  SegmentRunner* locating_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace espalier
