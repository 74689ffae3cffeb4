// Answers the Recordings service: runs by name, their facts, and how two differ.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/net/caller.h"
#include "espalier/v1/recording.pb.h"
#include "server/recordings/recording_store.h"
#include "server/recordings/run_names.h"
#include "server/store/job_store.h"

namespace espalier {

// Thread-safe.
class RunQueries {
 public:
  using FindRuns = std::function<absl::StatusOr<std::vector<RunName>>(
      absl::string_view run, RunVersions versions, const Caller& caller)>;

  // The pointers must outlive the queries.
  RunQueries(FindRuns find, const RecordingStore* recordings, const JobStore* jobs)
      : find_(std::move(find)), recordings_(*recordings), jobs_(*jobs) {}

  absl::Status List(const v1::ListRunsRequest& request, const Caller& caller,
                    v1::ListRunsReply* reply);
  absl::Status Get(const v1::GetRunRequest& request, const Caller& caller, v1::GetRunReply* reply);
  absl::Status Diff(const v1::DiffRunsRequest& request, const Caller& caller,
                    v1::DiffRunsReply* reply);

 private:
  // The only run of this name; InvalidArgument naming `field` for several.
  absl::StatusOr<RunName> FindOne(const char* field, const std::string& run,
                                  const Caller& caller) const;
  absl::Status AddLosses(v1::Recording* recording);
  // The counts of checkpoints, of a recording without these.
  absl::Status AddCounts(v1::Recording* recording);

  const FindRuns find_;
  const RecordingStore& recordings_;
  const JobStore& jobs_;
  absl::Mutex mutex_;
  // Of jobs that are over, whose log does not change until they are resumed: by id, with the steps
  // and attempts of which it is.
  struct KnownLosses {
    int64_t steps_done = 0;
    int32_t attempts = 0;
    bool any = false;
    v1::LossSummary summary;
  };
  std::map<std::string, KnownLosses> known_ ABSL_GUARDED_BY(mutex_);
  // Of jobs with copies in a spool, as only a list of the checkpoint store tells which of their
  // checkpoints are there, too: by id, with what changes with them.
  struct KnownCounts {
    int64_t stored = 0, stored_bytes = 0, copies = 0, unusable = 0;
    int32_t attempts = 0;
    int64_t all = 0, copied = 0, copied_bytes = 0;
  };
  std::map<std::string, KnownCounts> counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
