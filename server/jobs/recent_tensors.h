// Tensors of the newest step reports, for clients that watch a job while it runs. The job store
// keeps reports without tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "espalier/v1/training.pb.h"

namespace espalier {

// Not thread-safe.
class RecentTensors {
 public:
  // Holds at most `max_bytes` of all jobs together and drops the oldest reports' tensors first.
  explicit RecentTensors(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Moves the tensors of the job's report here; they replace those of the same step. Tensors larger
  // than the limit are dropped.
  void Take(const std::string& job_id, v1::StepReport* report);
  // Copies the tensors of the report's step into it, if they are still here.
  void AddTo(const std::string& job_id, v1::StepReport* report) const;
  // Drops the tensors of this and later steps of the job.
  void DropFrom(const std::string& job_id, int64_t step);

  size_t bytes() const { return bytes_; }

 private:
  using Key = std::pair<std::string, int64_t>;  // job, step
  struct Entry {
    v1::StepReport report;  // tensors only
    size_t bytes = 0;
    int64_t number = 0;  // in the order of Take
  };
  using Entries = std::map<Key, Entry>;

  Entries::iterator Erase(Entries::iterator entry);

  const size_t max_bytes_;
  size_t bytes_ = 0;
  int64_t next_number_ = 0;
  Entries entries_;
  std::map<int64_t, Key> by_number_;
};

}  // namespace espalier
