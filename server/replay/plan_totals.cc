#include "server/replay/plan_totals.h"

#include <algorithm>
#include <utility>

namespace espalier {
namespace {

constexpr int64_t kRowBytes = 100;
constexpr int64_t kElementBytes = 8;

int64_t BytesOfRow(const NamedProbe& probe, const ReplayProgram& program) {
  const Reduction& reduction = probe.probe.reduction;
  switch (reduction.kind) {
    case Reduction::kHistogram:
      return kRowBytes + reduction.count * kElementBytes;
    case Reduction::kSample:
    case Reduction::kTopK:
      return kRowBytes + 2 * reduction.count * kElementBytes;
    case Reduction::kQuantiles:
      return kRowBytes + 2 * static_cast<int64_t>(reduction.quantiles.size()) * kElementBytes;
    case Reduction::kFull:
      break;
    default:
      return kRowBytes;
  }
  int64_t bytes = kRowBytes;
  for (size_t r = 0; r < program.ranks(); ++r) {
    for (const v1::RankProbe& read : program.probes().by_rank[r]) {
      if (read.probe() != probe.numbers[0]) continue;
      for (const v1::ProbePoint& point : read.points()) {
        const v1::TensorSpec& part = program.lowered().training[r].buffers(point.buffer()).spec();
        int64_t elements = kElementBytes / 2;  // mostly F32
        for (const int64_t size : part.dims()) elements *= size;
        bytes += elements;
      }
    }
  }
  return bytes;
}

}  // namespace

void PlanTotals::AddRows(const ReplayProgram& program, int64_t steps) {
  for (const NamedProbe& probe : program.probes().probes) {
    estimate.set_rows(estimate.rows() + steps);
    estimate.set_bytes(estimate.bytes() + steps * BytesOfRow(probe, program));
  }
}

void PlanTotals::AddNames(const std::vector<ProbeExpression>& asked, const FoundProbes& found,
                          const std::string& run) {
  v1::ReplayEstimate::Lacking names;
  names.set_run(run);
  for (const auto& [probe, why] : found.lacking) {
    names.add_log(probe);
    lacking[probe] = std::string(why.message());
  }
  for (const ProbeExpression& probe : asked) {
    const std::string text = ToString(probe);
    if (std::find(names.log().begin(), names.log().end(), text) == names.log().end()) {
      known.insert(text);
    }
  }
  if (!names.log().empty()) *estimate.add_lacking() = std::move(names);
}

void PlanTotals::AddSegment(v1::ReplaySegment segment, double of_segment, size_t ranks) {
  segment.set_state(v1::REPLAY_WAITING);
  *estimate.add_segments() = std::move(segment);
  seconds += of_segment * static_cast<double>(ranks);
  longest = std::max(longest, of_segment);
}

}  // namespace espalier
