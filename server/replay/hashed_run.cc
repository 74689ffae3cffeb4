#include "server/replay/hashed_run.h"

#include <algorithm>

#include "server/recordings/recorded_losses.h"

namespace espalier {
namespace {

// Instructions that pass on what another rank has computed.
bool IsReceived(const v1::InstructionHashes::Entry& entry) { return entry.node().empty(); }

}  // namespace

absl::Status HashedRun::OnStep(const v1::StepReport& report) {
  const auto loss = report.values().find(kLossValue);
  if (loss != report.values().end()) losses_[report.step()] = loss->second;
  return absl::OkStatus();
}

void HashedRun::OnHashes(size_t rank, const v1::InstructionHashes& hashes) {
  // Many come in parts.
  steps_[hashes.step()][rank].MergeFrom(hashes);
}

std::optional<double> HashedRun::LossOf(int64_t step) const {
  const auto found = losses_.find(step);
  if (found == losses_.end()) return std::nullopt;
  return found->second;
}

std::optional<DifferentResult> FirstDifferent(const HashedRun::Steps& a,
                                              const HashedRun::Steps& b) {
  for (const auto& [step, of_a] : a) {
    const auto of_b = b.find(step);
    if (of_b == b.end()) continue;
    std::optional<DifferentResult> first;
    for (const auto& [rank, in_a] : of_a) {
      const auto in_b = of_b->second.find(rank);
      if (in_b == of_b->second.end()) continue;
      const int entries = std::min(in_a.entries_size(), in_b->second.entries_size());
      for (int i = 0; i < entries; ++i) {
        const v1::InstructionHashes::Entry& entry = in_a.entries(i);
        if (entry.hash() == in_b->second.entries(i).hash()) continue;
        // Ranks run the same instructions at about the same places.
        const bool before = !first.has_value() ||
                            std::pair(IsReceived(entry), entry.instruction()) <
                                std::pair(IsReceived(first->entry), first->entry.instruction());
        if (before) first = DifferentResult{step, rank, entry};
        break;
      }
    }
    if (first.has_value()) return first;
  }
  return std::nullopt;
}

}  // namespace espalier
