// How an attempt of a job ended, and how error codes are classified.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/jobs/calibrated_planner.h"
#include "server/jobs/checkpoint_folders.h"
#include "server/jobs/worker_memory.h"
#include "server/membership/worker_registry.h"

namespace espalier {

struct AttemptEnd {
  // kTooFewWorkers: no plan fits, and the workers have less memory than sufficed before.
  // kCheckpointDamaged: `fallback` is to be used instead.
  enum Kind {
    kFinished,
    kWorkersLost,
    kTooFewWorkers,
    kCheckpointDamaged,
    kFailed,
    kStopped
  } kind = kFailed;
  std::string reason;
  std::map<std::string, double> evaluation;  // kFinished
  int64_t evaluation_examples = 0;
  bool stopped_early = false;  // kFinished, before the last step
  std::string output_model;
  std::vector<int64_t> measured_peak_bytes;          // by rank
  CalibratedPlanner::CalibrationReport calibration;  // of a finished run
  StoredCheckpoint fallback;                         // kCheckpointDamaged; empty: step 0
  // kWorkersLost: workers that did not reach each other.
  std::vector<std::pair<Member, Member>> cut_off;

  static AttemptEnd Stopped();
  // For an error before any worker ran: kWorkersLost if the code says so, else kFailed.
  static AttemptEnd Failed(const absl::Status& status);
  static AttemptEnd TooFewWorkers(const WorkerMemory& present, const WorkerMemory& enough,
                                  const absl::Status& refusal);
};

// Returns true for codes that blame the job itself: another attempt would fail the same way.
bool IsJobError(absl::StatusCode code);
// Returns true for codes of a lost worker, of a peer of one, or of a worker that has restarted.
bool IsWorkerLoss(absl::StatusCode code);

}  // namespace espalier
