// The durable jobs as lists see them: filters, pages and counts without reading the store. No
// threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

struct JobSummary {
  int64_t number = 0;  // grows with every submission
  std::string id;
  std::string owner;
  std::string name;
  std::vector<std::string> models;  // names by which ListJobsRequest.model finds it
  int64_t created_unix_ms = 0;
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
};

JobSummary SummaryOf(int64_t number, const v1::Job& job);

class JobIndex {
 public:
  using MaySee = std::function<bool(const std::string& owner)>;

  void Put(JobSummary job);
  void Remove(int64_t number);

  struct Page {
    std::vector<std::string> ids;
    std::string next_page_token;
    int64_t matching = 0;
  };
  // Returns InvalidArgument, naming the field, for a bad page_size, page_token or state. Jobs that
  // come or go between two pages make no other job appear twice or not at all.
  absl::StatusOr<Page> List(const v1::ListJobsRequest& request, const MaySee& may_see) const;

  std::map<v1::JobState, int> Count(const MaySee& may_see) const;

 private:
  std::map<int64_t, JobSummary> jobs_;  // by number
  std::map<v1::JobState, std::set<int64_t>> by_state_;
  std::map<std::string, std::map<v1::JobState, int>> counts_;  // by owner
};

}  // namespace espalier
