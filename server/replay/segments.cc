#include "server/replay/segments.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <utility>

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

// Whether there are logged steps on both sides of a checkpoint within the segment.
bool CanCutAt(int64_t checkpoint, const SegmentCut& segment) {
  return checkpoint > segment.checkpoint && checkpoint > segment.logged.first &&
         LoggedFrom(segment.logged, checkpoint) < segment.logged.end;
}

// Cuts a segment in two, and returns the second; nothing unless CanCutAt.
std::optional<SegmentCut> CutAt(int64_t checkpoint, SegmentCut* segment) {
  if (!CanCutAt(checkpoint, *segment)) return std::nullopt;
  const int64_t next = LoggedFrom(segment->logged, checkpoint);
  SegmentCut after{checkpoint, segment->logged};
  after.logged.first = next;
  segment->logged.end = EndOfLogged(segment->logged, checkpoint);
  return after;
}

// Cuts a segment into at most so many parts of about the same length, at some of the checkpoints.
std::vector<SegmentCut> CutEvenly(const SegmentCut& segment, std::vector<int64_t> checkpoints,
                                  size_t parts) {
  std::vector<SegmentCut> cut = {segment};
  for (size_t i = 1; i < parts && !checkpoints.empty(); ++i) {
    const int64_t target = segment.checkpoint +
                           segment.steps() * static_cast<int64_t>(i) / static_cast<int64_t>(parts);
    const auto nearest = std::min_element(
        checkpoints.begin(), checkpoints.end(),
        [&](int64_t a, int64_t b) { return std::llabs(a - target) < std::llabs(b - target); });
    if (const std::optional<SegmentCut> after = CutAt(*nearest, &cut.back()); after.has_value()) {
      cut.push_back(*after);
    }
    checkpoints.erase(checkpoints.begin(), std::next(nearest));
  }
  return cut;
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
  // Workers that are left take parts of the longest segments, as far as these have checkpoints.
  const size_t most = static_cast<size_t>(std::max(1, request.most_at_once));
  std::vector<size_t> parts(segments.size(), 1);
  std::vector<std::vector<int64_t>> within(segments.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    for (const int64_t checkpoint : request.checkpoints) {
      if (CanCutAt(checkpoint, segments[i])) within[i].push_back(checkpoint);
    }
  }
  for (size_t all = segments.size(); all < most; ++all) {
    std::optional<size_t> longest;
    const auto part_steps = [&](size_t i) {
      return static_cast<double>(segments[i].steps()) / static_cast<double>(parts[i]);
    };
    for (size_t i = 0; i < segments.size(); ++i) {
      if (parts[i] > within[i].size()) continue;
      if (!longest.has_value() || part_steps(i) > part_steps(*longest)) longest = i;
    }
    if (!longest.has_value()) break;
    ++parts[*longest];
  }
  std::vector<SegmentCut> result;
  for (size_t i = 0; i < segments.size(); ++i) {
    for (SegmentCut& part : CutEvenly(segments[i], within[i], parts[i])) {
      result.push_back(std::move(part));
    }
  }
  return result;
}

}  // namespace espalier
