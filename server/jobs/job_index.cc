#include "server/jobs/job_index.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "ops/graph/name_pattern.h"
#include "server/store/pages.h"

namespace espalier {
namespace {

bool Matches(const v1::ListJobsRequest& request, const JobSummary& job) {
  const auto matches = [](const std::string& pattern, const std::string& name) {
    return MatchesPattern(pattern, name);
  };
  if (request.states_size() > 0 && !absl::c_linear_search(request.states(), job.state)) {
    return false;
  }
  if (!request.owner().empty() && job.owner != request.owner()) return false;
  if (!request.name().empty() && !matches(request.name(), job.name) &&
      !matches(request.name(), job.id)) {
    return false;
  }
  if (!request.model().empty() && absl::c_none_of(job.models, [&](const std::string& model) {
        return matches(request.model(), model);
      })) {
    return false;
  }
  if (job.created_unix_ms < request.submitted_from_unix_ms()) return false;
  return request.submitted_before_unix_ms() == 0 ||
         job.created_unix_ms < request.submitted_before_unix_ms();
}

}  // namespace

JobSummary SummaryOf(int64_t number, const v1::Job& job) {
  JobSummary summary;
  summary.number = number;
  summary.id = job.id();
  summary.owner = job.owner();
  summary.name = job.spec().name();
  summary.created_unix_ms = job.created_unix_ms();
  summary.state = job.state();
  const v1::TrainingSpec& spec = job.spec();
  for (const std::string& model :
       {job.output_model(), spec.output_model(), spec.onnx_artifact(), spec.init_artifact()}) {
    if (!model.empty() && !absl::c_linear_search(summary.models, model)) {
      summary.models.push_back(model);
    }
  }
  return summary;
}

void JobIndex::Put(JobSummary job) {
  Remove(job.number);
  ++counts_[job.owner][job.state];
  by_state_[job.state].insert(job.number);
  const int64_t number = job.number;
  jobs_[number] = std::move(job);
}

void JobIndex::Remove(int64_t number) {
  const auto known = jobs_.find(number);
  if (known == jobs_.end()) return;
  --counts_[known->second.owner][known->second.state];
  by_state_[known->second.state].erase(number);
  jobs_.erase(known);
}

absl::StatusOr<JobIndex::Page> JobIndex::List(const v1::ListJobsRequest& request,
                                              const MaySee& may_see) const {
  for (const int state : request.states()) {
    if (state == v1::JOB_STATE_UNSPECIFIED || !v1::JobState_IsValid(state)) {
      return absl::InvalidArgumentError(
          absl::StrCat("states: there is no state ", state, " of jobs"));
    }
  }
  absl::StatusOr<size_t> size = PageSize(request.page_size());
  if (!size.ok()) return size.status();
  int64_t after = 0;
  if (!request.page_token().empty()) {
    absl::StatusOr<int64_t> read = NumberOfToken(request.page_token());
    if (!read.ok()) return read.status();
    after = *read;
  }
  Page page;
  int64_t last = 0;
  // Those are counted already; otherwise all jobs are looked at.
  const bool by_counts = request.name().empty() && request.model().empty() &&
                         request.submitted_from_unix_ms() == 0 &&
                         request.submitted_before_unix_ms() == 0;
  if (by_counts) {
    const auto counts = Count([&](const std::string& owner) {
      return may_see(owner) && (request.owner().empty() || owner == request.owner());
    });
    for (const auto& [state, count] : counts) {
      const bool wanted =
          request.states_size() == 0 || absl::c_linear_search(request.states(), state);
      page.matching += wanted ? count : 0;
    }
  }
  // Returns false once there is nothing left to find out.
  const auto take = [&](const JobSummary& job) {
    if (!may_see(job.owner) || !Matches(request, job)) return true;
    page.matching += by_counts ? 0 : 1;
    const bool earlier =
        after != 0 && (request.newest_first() ? job.number >= after : job.number <= after);
    if (earlier) return true;
    if (page.ids.size() < *size) {
      page.ids.push_back(job.id);
      last = job.number;
      return true;
    }
    page.next_page_token = TokenOfNumber(last);
    return !by_counts;
  };
  if (request.states_size() > 0) {
    std::set<int64_t> numbers;
    for (const int state : request.states()) {
      const auto found = by_state_.find(static_cast<v1::JobState>(state));
      if (found != by_state_.end()) numbers.insert(found->second.begin(), found->second.end());
    }
    const auto take_number = [&](int64_t number) { return take(jobs_.at(number)); };
    if (request.newest_first()) {
      (void)std::all_of(numbers.rbegin(), numbers.rend(), take_number);
    } else {
      (void)std::all_of(numbers.begin(), numbers.end(), take_number);
    }
  } else if (request.newest_first()) {
    auto it = jobs_.rbegin();
    if (by_counts && after != 0) it = std::make_reverse_iterator(jobs_.lower_bound(after));
    while (it != jobs_.rend() && take(it->second)) ++it;
  } else {
    auto it = by_counts ? jobs_.upper_bound(after) : jobs_.begin();
    while (it != jobs_.end() && take(it->second)) ++it;
  }
  return page;
}

std::map<v1::JobState, int> JobIndex::Count(const MaySee& may_see) const {
  std::map<v1::JobState, int> sum;
  for (const auto& [owner, states] : counts_) {
    if (!may_see(owner)) continue;
    for (const auto& [state, count] : states) {
      if (count > 0) sum[state] += count;
    }
  }
  return sum;
}

}  // namespace espalier
