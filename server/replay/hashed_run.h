// Replays of the same steps whose operators' results are hashed, and where two of them differ.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "espalier/v1/worker.pb.h"
#include "server/replay/segment_runner.h"

namespace espalier {

class HashedRun : public SegmentObserver {
 public:
  absl::Status OnLoaded(const std::vector<v1::LoadProgramReply>&) override {
    return absl::OkStatus();
  }
  absl::Status OnStep(const v1::StepReport& report) override;
  absl::Status OnRows(std::vector<v1::HistoryRow>) override { return absl::OkStatus(); }
  void OnHashes(size_t rank, const v1::InstructionHashes& hashes) override;

  // The loss of a step; nothing if there is none.
  std::optional<double> LossOf(int64_t step) const;
  // By step, then rank: what the instructions wrote, in their order.
  using Steps = std::map<int64_t, std::map<size_t, v1::InstructionHashes>>;
  const Steps& steps() const { return steps_; }

 private:
  std::map<int64_t, double> losses_;
  Steps steps_;
};

struct DifferentResult {
  int64_t step = 0;
  size_t rank = 0;
  v1::InstructionHashes::Entry entry;
};

// Returns the first result that differs: in the first step that has one, of the rank that computes
// it, rather than of one that is sent it. Nothing if all are the same.
std::optional<DifferentResult> FirstDifferent(const HashedRun::Steps& a, const HashedRun::Steps& b);

}  // namespace espalier
