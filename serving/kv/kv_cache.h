// Who owns which slot of a model's KV cache. A slot holds K and V of one token in every layer; the
// pool numbers them 0..slots-1. A sequence is a list of slots in order of position; besides, it may
// hold scratch slots: the nodes of a draft tree, which either join the list (commit) or go back
// (drop).
//
// Invariant: every slot is free, or in exactly one place of exactly one sequence. Operations check
// it where it could break and answer Internal without changing anything.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace espalier {

class KvCache {
 public:
  using SequenceId = int64_t;

  struct Statistics {
    int slots = 0;
    int used = 0;       // scratch included
    int peak_used = 0;  // since construction
    int sequences = 0;
    int64_t committed_total = 0;  // slots that ever became part of a sequence
    int64_t scratch_total = 0;    // slots that were ever handed out as scratch
  };

  explicit KvCache(int slots);

  int free_slots() const { return static_cast<int>(free_.size()); }
  Statistics statistics() const;

  // Positions of the sequence that have a slot; 0 for one that is not known.
  int length(SequenceId id) const;
  // In order of position. Valid until the next call that changes the sequence.
  absl::Span<const int32_t> slots(SequenceId id) const;

  // Adds `count` slots at the end of the sequence, which is created if need be. ResourceExhausted
  // with the numbers if fewer are free; nothing changes then.
  absl::Status Append(SequenceId id, int count);

  // Hands out `count` scratch slots for the sequence. Errors as Append.
  absl::StatusOr<std::vector<int32_t>> TakeScratch(SequenceId id, int count);

  // Moves scratch slots of this sequence to its end, in the order given.
  absl::Status CommitScratch(SequenceId id, absl::Span<const int32_t> scratch);

  // Frees the scratch slots of the sequence that were not committed.
  void DropScratch(SequenceId id);

  // Frees the slots of all positions from `length` on; no effect if it is shorter.
  void Truncate(SequenceId id, int length);

  // Frees everything that the sequence has and forgets it.
  void Release(SequenceId id);

  // Counts all slots anew. Internal with the slot if one is lost or has two owners.
  absl::Status CheckInvariants() const;

 private:
  struct Sequence {
    std::vector<int32_t> slots;
    std::vector<int32_t> scratch;
  };

  absl::Status Take(int count, std::vector<int32_t>& out);
  void Give(int32_t slot) { free_.push_back(slot); }

  int total_;
  std::vector<int32_t> free_;  // a stack: what was used last is still in the processor's caches
  absl::flat_hash_map<SequenceId, Sequence> sequences_;
  int peak_used_ = 0;
  int64_t committed_total_ = 0;
  int64_t scratch_total_ = 0;
};

}  // namespace espalier
