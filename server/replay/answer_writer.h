// Gathers a segment's answers, and stores them some at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "espalier/v1/replay.pb.h"
#include "server/replay/segment_work.h"

namespace espalier {

// Not thread-safe.
class AnswerWriter {
 public:
  // `run` has experiment, version and job of the rows.
  AnswerWriter(const ReplayTools& tools, v1::HistoryRow run, const std::string& replay_id,
               int segment);

  // Takes rows with step, name, reduction and value, in the order of steps.
  void Add(std::vector<v1::HistoryRow> rows);
  // Whether rows have waited for a second, or are many.
  bool IsDue() const { return absl::Now() >= due_; }
  // Makes the rows of steps up to this one durable.
  absl::Status Store(int64_t last_step);
  int64_t stored_rows() const { return stored_rows_; }

 private:
  const ReplayTools tools_;
  const v1::HistoryRow run_;
  const std::string replay_id_;
  const int segment_;
  std::vector<v1::HistoryRow> rows_;  // not stored yet
  size_t bytes_ = 0;                  // of them
  absl::Time due_ = absl::InfiniteFuture();
  int64_t stored_rows_ = 0;
};

}  // namespace espalier
