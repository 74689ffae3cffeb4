#include "server/replay/segments.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// The last checkpoint that a replay of `step` can begin at.
int64_t CheckpointBefore(const std::vector<int64_t>& checkpoints, int64_t step) {
  const auto after = std::upper_bound(checkpoints.begin(), checkpoints.end(), step);
  return after == checkpoints.begin() ? 0 : *std::prev(after);
}

// The first logged step that is not before `step`.
int64_t LoggedFrom(const LoggedSteps& logged, int64_t step) {
  if (step <= logged.first) return logged.first;
  return logged.first + (step - logged.first + logged.every - 1) / logged.every * logged.every;
}

// The end of the steps up to the last logged one before `end`.
int64_t EndOfLogged(const LoggedSteps& logged, int64_t end) {
  return logged.first + (end - 1 - logged.first) / logged.every * logged.every + 1;
}

// Cuts a segment at a checkpoint within it; nothing if no logged step is on one of the sides.
std::optional<SegmentCut> CutAt(int64_t checkpoint, SegmentCut* segment) {
  const int64_t next = LoggedFrom(segment->logged, checkpoint);
  if (checkpoint <= segment->checkpoint || next >= segment->logged.end ||
      checkpoint <= segment->logged.first) {
    return std::nullopt;
  }
  SegmentCut after{checkpoint, segment->logged};
  after.logged.first = next;
  segment->logged.end = EndOfLogged(segment->logged, checkpoint);
  return after;
}

}  // namespace

absl::StatusOr<LoggedSteps> PartOfSteps(const LoggedSteps& steps, int64_t part, int64_t parts) {
  if (parts < 1 || part < 1 || part > parts) {
    return absl::InvalidArgumentError(absl::StrCat("segment ", part, "/", parts,
                                                   ": segments are numbered from 1 to ",
                                                   std::max<int64_t>(1, parts)));
  }
  const int64_t count = steps.count(), each = count / parts, larger = count % parts;
  const int64_t before = (part - 1) * each + std::min(part - 1, larger);
  const int64_t size = each + (part <= larger ? 1 : 0);
  LoggedSteps result = steps;
  result.first = steps.first + before * steps.every;
  result.end = size == 0 ? result.first : result.first + (size - 1) * steps.every + 1;
  return result;
}

std::vector<SegmentCut> CutSegments(const SegmentRequest& request) {
  std::vector<SegmentCut> segments;
  if (request.logged.count() == 0) return segments;
  const LoggedSteps& all = request.logged;
  SegmentCut whole{CheckpointBefore(request.checkpoints, all.first), all};
  whole.logged.end = EndOfLogged(all, all.end);
  segments.push_back(whole);
  const auto cut = [&](size_t i, int64_t checkpoint) {
    const std::optional<SegmentCut> after = CutAt(checkpoint, &segments[i]);
    if (!after.has_value()) return false;
    segments.insert(segments.begin() + static_cast<int64_t>(i) + 1, *after);
    return true;
  };
  // At attempts, and where a checkpoint skips enough steps. The last segment is the one cut.
  for (const int64_t checkpoint : request.checkpoints) {
    const SegmentCut& last = segments.back();
    if (checkpoint <= last.checkpoint || checkpoint >= last.logged.end) continue;
    const bool attempt =
        std::binary_search(request.attempts.begin(), request.attempts.end(), checkpoint);
    // Only the newest checkpoint before the next logged step skips all that can be skipped.
    const int64_t next = LoggedFrom(last.logged, checkpoint);
    const bool newest = CheckpointBefore(request.checkpoints, next) == checkpoint;
    const int64_t skipped =
        checkpoint > last.logged.first ? checkpoint - EndOfLogged(last.logged, checkpoint) : 0;
    const bool saves =
        newest && static_cast<double>(skipped) * request.step_seconds > request.load_seconds;
    if (attempt || (saves && skipped > 0)) cut(segments.size() - 1, checkpoint);
  }
  std::vector<bool> whole_already(segments.size(), false);
  while (static_cast<int>(segments.size()) < request.most_at_once) {
    std::optional<size_t> longest;
    for (size_t i = 0; i < segments.size(); ++i) {
      if (whole_already[i]) continue;
      if (!longest.has_value() || segments[i].steps() > segments[*longest].steps()) longest = i;
    }
    if (!longest.has_value()) break;
    const SegmentCut& segment = segments[*longest];
    const int64_t middle = (segment.checkpoint + segment.logged.end) / 2;
    std::vector<int64_t> within;
    for (const int64_t checkpoint : request.checkpoints) {
      if (checkpoint > segment.logged.first && checkpoint < segment.logged.end) {
        within.push_back(checkpoint);
      }
    }
    const auto nearest = std::min_element(within.begin(), within.end(), [&](int64_t a, int64_t b) {
      return std::llabs(a - middle) < std::llabs(b - middle);
    });
    if (nearest == within.end() || !cut(*longest, *nearest)) {
      whole_already[*longest] = true;
      continue;
    }
    whole_already.insert(whole_already.begin() + static_cast<int64_t>(*longest) + 1, false);
  }
  return segments;
}

}  // namespace espalier
