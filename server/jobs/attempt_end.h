// How an attempt of a job ended, and what errors say of that.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/jobs/calibrated_planner.h"
#include "server/jobs/worker_memory.h"

namespace espalier {

struct AttemptEnd {
  // kTooFewWorkers: with less memory than sufficed before, and no plan fits into it.
  enum Kind { kFinished, kWorkersLost, kTooFewWorkers, kFailed, kStopped } kind = kFailed;
  std::string reason;
  std::map<std::string, double> evaluation;  // kFinished
  std::string output_model;
  std::vector<int64_t> measured_peak_bytes;  // by rank
  CalibratedPlanner::CalibrationReport calibration;                 // of a run that finished

  static AttemptEnd Stopped();
  // Before any worker ran: kWorkersLost where that is what the error tells.
  static AttemptEnd Failed(const absl::Status& status);
  static AttemptEnd TooFewWorkers(const WorkerMemory& present, const WorkerMemory& enough,
                                  const absl::Status& refusal);
};

// Codes that say that the job itself is wrong: another attempt would end the same way.
bool IsJobError(absl::StatusCode code);
// Codes of a lost worker, of a peer of one, or of one that was started anew meanwhile.
bool IsWorkerLoss(absl::StatusCode code);

}  // namespace espalier
