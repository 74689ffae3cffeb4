// Puts the parts that ranks send of a step's probes together to answers.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/replay.pb.h"
#include "espalier/v1/worker.pb.h"
#include "server/replay/probe_set.h"

namespace espalier {

// Not thread-safe. `probes` must outlive it.
class StepAnswers {
 public:
  explicit StepAnswers(const FoundProbes* probes);

  // Takes what a rank sends. Returns the rows of the step, with step, name, reduction and value, in
  // the order of the probes, once all ranks have sent all of it; else none. Internal for a probe
  // that the rank was not asked for, or that it has sent before.
  absl::StatusOr<std::vector<v1::HistoryRow>> Add(size_t rank, const v1::ProbeResults& results);

 private:
  struct Step {
    std::vector<std::vector<v1::ProbePart>> parts;  // by number of the probe
    std::vector<std::vector<bool>> sent;            // by rank and number
    size_t missing = 0;
  };
  absl::StatusOr<std::vector<v1::HistoryRow>> Finish(int64_t step, Step parts) const;

  const FoundProbes& probes_;
  std::vector<std::vector<bool>> expected_;  // by rank and number of the probe
  size_t numbers_ = 0;
  size_t all_ = 0;  // results of a step
  std::map<int64_t, Step> steps_;
};

}  // namespace espalier
