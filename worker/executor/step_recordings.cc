#include "worker/executor/step_recordings.h"

#include <algorithm>

namespace espalier {

StepRecordings::~StepRecordings() {
  for (const auto& [sizes, seen] : seen_) {
    if (seen.recording != 0) recorder_->Forget(seen.recording);
  }
}

absl::Status StepRecordings::Run(const DynamicSizes& sizes,
                                 const std::function<absl::Status()>& enqueue) {
  if (sizes.rows > kMostRows) return enqueue();
  const Sizes key(sizes.rows, sizes.output_rows);
  const auto found = seen_.find(key);
  if (found != seen_.end()) {
    found->second.used = ++steps_;
    if (found->second.recording != 0) return recorder_->Replay(found->second.recording);
    return Record(key, enqueue);
  }
  // The first time libraries load and prepare what cannot be recorded.
  if (absl::Status s = enqueue(); !s.ok()) return s;
  if (seen_.size() >= kMostKept) DropOldest();
  seen_[key].used = ++steps_;
  return absl::OkStatus();
}

absl::Status StepRecordings::Record(const Sizes& sizes,
                                    const std::function<absl::Status()>& enqueue) {
  absl::Status status = recorder_->Begin();
  if (!status.ok()) return status;
  status = enqueue();
  const absl::StatusOr<uint64_t> recording = recorder_->End();
  if (!status.ok() || !recording.ok()) {
    seen_.erase(sizes);
    if (recording.ok()) recorder_->Forget(*recording);
    return status.ok() ? recording.status() : status;
  }
  seen_[sizes].recording = *recording;
  return recorder_->Replay(*recording);
}

void StepRecordings::DropOldest() {
  const auto oldest =
      std::min_element(seen_.begin(), seen_.end(),
                       [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
  if (oldest->second.recording != 0) recorder_->Forget(oldest->second.recording);
  seen_.erase(oldest);
}

}  // namespace espalier
