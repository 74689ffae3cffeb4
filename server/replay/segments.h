// Cuts the steps of a replay into segments, each of which trains on from a checkpoint. Pure
// functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

// Logged are the steps first, first + every, ... below end.
struct LoggedSteps {
  int64_t first = 0;
  int64_t end = 0;
  int64_t every = 1;

  int64_t count() const { return end <= first ? 0 : (end - first + every - 1) / every; }
  bool operator==(const LoggedSteps&) const = default;
};

// Returns part `part`, from 1, of `parts` parts of the steps: contiguous, of sizes that differ by
// one at most, the larger ones first. Empty if there are fewer steps than parts. InvalidArgument
// unless 1 <= part <= parts.
absl::StatusOr<LoggedSteps> PartOfSteps(const LoggedSteps& steps, int64_t part, int64_t parts);

struct SegmentCut {
  int64_t checkpoint = 0;  // steps done at its checkpoint; 0: the initial values
  LoggedSteps logged;      // trained are the steps from `checkpoint` to logged.end

  int64_t steps() const { return logged.end - checkpoint; }
  bool operator==(const SegmentCut&) const = default;
};

struct SegmentRequest {
  LoggedSteps logged;
  std::vector<int64_t> checkpoints;  // steps done, ascending
  // First steps of the job's attempts, ascending: a segment ends there if a checkpoint is there.
  std::vector<int64_t> attempts;
  int most_at_once = 1;     // segments that run at the same time
  double step_seconds = 0;  // of training; 0: not known
  double load_seconds = 0;  // of a checkpoint, with its programs
};

// Returns the segments in the order of steps. Each begins at the last checkpoint before its first
// logged step. Steps between logged ones are skipped where a checkpoint makes that faster. If these
// are fewer than most_at_once, the longest are cut at checkpoints into parts of about the same
// length.
std::vector<SegmentCut> CutSegments(const SegmentRequest& request);

}  // namespace espalier
