#include "client/cli/job_id.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

constexpr int64_t kIdsNamed = 10;

// "job-7".
bool IsJobId(absl::string_view job) {
  return absl::ConsumePrefix(&job, "job-") && !job.empty() &&
         std::all_of(job.begin(), job.end(), absl::ascii_isdigit);
}

}  // namespace

absl::StatusOr<std::string> JobIdOf(Client* client, const std::string& job) {
  // The list takes * for any characters, which no name means here.
  if (IsJobId(job) || job.empty() || job.find('*') != job.npos) return job;
  v1::ListJobsRequest request;
  request.set_name(job);
  request.set_newest_first(true);
  for (const bool over : {false, true}) {
    request.clear_states();
    if (!over) {
      for (const v1::JobState state : {v1::QUEUED, v1::PLANNING, v1::RUNNING, v1::RECOVERING}) {
        request.add_states(state);
      }
    }
    const auto reply = client->ListJobs(request, kIdsNamed);
    if (!reply.ok()) return reply.status();
    std::vector<std::string> ids;
    for (const v1::Job& found : reply->jobs()) {
      if (found.id() == job) return job;
      if (found.spec().name() == job) ids.push_back(found.id());
    }
    if (ids.size() == 1) return ids[0];
    if (ids.empty()) continue;
    const int64_t more = reply->matching() - reply->jobs_size();
    return absl::FailedPreconditionError(absl::StrCat(
        ids.size() + static_cast<size_t>(more), over ? " jobs" : " jobs that are not over",
        " have the name '", Printable(job), "': ", absl::StrJoin(ids, ", "),
        more > 0 ? ", ..." : "", "; give the id of one (espalier jobs --name=", Printable(job),
        " shows them)"));
  }
  return job;
}

}  // namespace espalier
