#include "serving/kv/kv_cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace espalier {

KvCache::KvCache(int slots) : total_(std::max(slots, 0)) {
  free_.reserve(total_);
  for (int32_t slot = total_ - 1; slot >= 0; --slot) free_.push_back(slot);
}

KvCache::Statistics KvCache::statistics() const {
  return {.slots = total_,
          .used = total_ - free_slots(),
          .peak_used = peak_used_,
          .sequences = static_cast<int>(sequences_.size()),
          .committed_total = committed_total_,
          .scratch_total = scratch_total_};
}

int KvCache::length(SequenceId id) const { return static_cast<int>(slots(id).size()); }

absl::Span<const int32_t> KvCache::slots(SequenceId id) const {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return {};
  return it->second.slots;
}

absl::Status KvCache::Take(int count, std::vector<int32_t>& out) {
  if (count < 0) return absl::InternalError(absl::StrCat("cannot take ", count, " KV slots"));
  if (count > free_slots()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(count, " KV slots are needed, ", free_slots(), " of ", total_, " are free"));
  }
  out.insert(out.end(), free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - count);
  peak_used_ = std::max(peak_used_, total_ - free_slots());
  return absl::OkStatus();
}

absl::Status KvCache::Append(SequenceId id, int count) {
  if (count > free_slots()) {
    std::vector<int32_t> none;
    return Take(count, none);
  }
  absl::Status status = Take(count, sequences_[id].slots);
  if (status.ok()) committed_total_ += count;
  return status;
}

absl::StatusOr<std::vector<int32_t>> KvCache::TakeScratch(SequenceId id, int count) {
  std::vector<int32_t> taken;
  if (absl::Status status = Take(count, taken); !status.ok()) return status;
  std::vector<int32_t>& scratch = sequences_[id].scratch;
  scratch.insert(scratch.end(), taken.begin(), taken.end());
  scratch_total_ += count;
  return taken;
}

absl::Status KvCache::CommitScratch(SequenceId id, absl::Span<const int32_t> committed) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) {
    return absl::InternalError(absl::StrCat("sequence ", id, " has no KV slots"));
  }
  std::vector<int32_t> rest = it->second.scratch;
  for (const int32_t slot : committed) {
    const auto found = std::find(rest.begin(), rest.end(), slot);
    if (found == rest.end()) {
      return absl::InternalError(
          absl::StrCat("KV slot ", slot, " is not a scratch slot of sequence ", id));
    }
    rest.erase(found);
  }
  it->second.scratch = std::move(rest);
  it->second.slots.insert(it->second.slots.end(), committed.begin(), committed.end());
  committed_total_ += static_cast<int64_t>(committed.size());
  return absl::OkStatus();
}

void KvCache::DropScratch(SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  for (const int32_t slot : it->second.scratch) Give(slot);
  it->second.scratch.clear();
}

void KvCache::Truncate(SequenceId id, int length) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  std::vector<int32_t>& slots = it->second.slots;
  while (static_cast<int>(slots.size()) > std::max(length, 0)) {
    Give(slots.back());
    slots.pop_back();
  }
}

void KvCache::Release(SequenceId id) {
  Truncate(id, 0);
  DropScratch(id);
  sequences_.erase(id);
}

absl::Status KvCache::CheckInvariants() const {
  std::vector<int> owners(total_, 0);
  const auto count = [&](const std::vector<int32_t>& slots) {
    for (const int32_t slot : slots) {
      if (slot < 0 || slot >= total_) return false;
      ++owners[slot];
    }
    return true;
  };
  bool in_range = count(free_);
  for (const auto& [id, sequence] : sequences_) {
    in_range = count(sequence.slots) && count(sequence.scratch) && in_range;
  }
  if (!in_range) return absl::InternalError("a KV slot is outside the pool");
  for (int slot = 0; slot < total_; ++slot) {
    if (owners[slot] != 1) {
      return absl::InternalError(
          absl::StrCat("KV slot ", slot, " has ", owners[slot], " owners, expected 1"));
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
