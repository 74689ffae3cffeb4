// Writers of histories: of what was recorded of runs, and the answers to replays of them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "espalier/v1/replay.pb.h"

namespace espalier {

// Takes the rows of one or several runs, in the order of version, name and step, and writes them.
class HistoryExporter {
 public:
  virtual ~HistoryExporter() = default;
  virtual absl::Status Add(const v1::HistoryRow& row) = 0;
  // Completes what is written; files appear now. No calls may follow. Without this call nothing is
  // left.
  virtual absl::Status Finish() = 0;
  // After Finish: what was written and what was left out, a sentence each.
  virtual std::vector<std::string> Notes() const { return {}; }
};

}  // namespace espalier
