// Checkpoints that segments of replays read.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/jobs/attempt.h"
#include "server/recordings/fetched_checkpoint.h"

namespace espalier {

// As FetchedCheckpoint::Open, for a segment of a replay.
inline absl::StatusOr<FetchedCheckpoint> FetchCheckpoint(const AttemptTools& tools,
                                                         const std::string& job_id,
                                                         const std::string& directory,
                                                         const std::string& replay_id, int segment,
                                                         const std::function<bool()>& stopped) {
  return FetchedCheckpoint::Open({tools.checkpoints, tools.spool, tools.recordings}, job_id,
                                 directory, absl::StrCat(replay_id, "/", segment), stopped);
}

}  // namespace espalier
