// Ownership of the slots of a model's KV cache, with prefix caching. A slot holds K and V of one
// token in every layer; slots are numbered 0..slots-1. A sequence is a list of slots by position.
// It may also hold scratch slots, for the nodes of a draft tree, which are either appended to the
// list (commit) or freed (drop).
//
// Prefix caching: sequences with a common prefix share slots, because K and V of a token depend bit
// for bit only on it and the tokens before it. The unit is a block of kBlock tokens (compare vLLM).
// CacheBlocks enters each full block of a sequence under (previous block, its tokens) and, on
// request, the rest as a partial block. AttachPrefix starts a sequence with the longest chain of
// full blocks that matches its tokens, and then with the first slots of the next block that has the
// longest common prefix. A slot is written only once while anyone owns it, so sequences can diverge
// inside a block without copy-on-write: each continues in slots of its own. Sequences of different
// namespaces share nothing. Blocks without a sequence stay until their slots are needed; eviction
// is LRU, and a block is evicted before its parent.
//
// Invariant: the owners of a slot are the sequences that hold it beyond their blocks or as scratch,
// and the blocks that list it; a slot without owners is free. Operations that would break it return
// Internal and change nothing.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "serving/kv/slot_pool.h"
#include "serving/statistics/histogram.h"

namespace espalier {

// Which sequences may share blocks: those with the same LoRA adapter, which changes K and V, and
// the same cache salt, which keeps users from learning by timing what others asked.
struct KvNamespace {
  int adapter = -1;
  absl::string_view salt;

  bool operator==(const KvNamespace&) const = default;
};

class KvCache {
 public:
  using SequenceId = int64_t;
  static constexpr int kBlock = 16;

  struct Statistics {
    int slots = 0;
    int used = 0;       // by sequences, each slot once; includes scratch
    int peak_used = 0;  // since construction
    int cached = 0;     // in blocks that no sequence uses now; counted as free
    int sequences = 0;
    int64_t committed_total = 0;  // slots appended to sequences, ever
    int64_t scratch_total = 0;    // scratch slots taken, ever
    int64_t attached_total = 0;   // slots that sequences took from blocks, ever
    int64_t evicted_total = 0;    // blocks, ever
  };

  // A full or partial block. A partial one is not used as a whole by a sequence, and has no
  // children.
  struct BlockTimes {
    HistogramCounts lifetime;  // of evicted blocks: since insertion
    HistogramCounts idle;      // of evicted blocks: since a sequence last attached or released them
    // of attached blocks: since a sequence last attached or released them
    HistogramCounts reuse_gaps;
    BlockTimes();
  };

  explicit KvCache(int slots);

  // Sets the time for block_times(); 0 initially.
  void SetTime(double seconds) { now_ = seconds; }
  const BlockTimes& block_times() const { return block_times_; }

  // Includes blocks that no sequence uses.
  int free_slots() const { return pool_.free() + idle_slots_; }
  Statistics statistics() const;

  // Positions of the sequence with a slot; 0 for an unknown sequence.
  int length(SequenceId id) const;
  // By position. Valid until the sequence changes.
  absl::Span<const int32_t> slots(SequenceId id) const;

  int sequences_with_slots() const;
  int scratch_slots() const;  // of all sequences

  // How many positions a new sequence of these tokens can attach, and how many of them count as
  // free now.
  struct Prefix {
    int length = 0;
    int idle = 0;
  };
  Prefix FindPrefix(absl::Span<const int> tokens, const KvNamespace& space = {}) const;

  // Slots of the sequence with other owners: releasing the sequence would not free them.
  int shared(SequenceId id) const;

  // Gives an empty sequence the longest cached prefix of `tokens`; returns its length. Returns 0,
  // without effect, for a sequence with slots.
  int AttachPrefix(SequenceId id, absl::Span<const int> tokens, const KvNamespace& space = {});

  // Enters the full blocks of the sequence into the index. `tokens`: at least length(id) of the
  // sequence. If an equal block exists, its slots replace the sequence's own, which are freed.
  // Slots may change, so do not call between running a batch and its commit. A sequence has the
  // same namespace in all calls. `whole`: also enters the tokens after the last full block.
  void CacheBlocks(SequenceId id, absl::Span<const int> tokens, const KvNamespace& space = {},
                   bool whole = false);

  // Drops all blocks that no sequence uses, because their content is lost.
  void ResetPrefixCache();

  // Appends `count` slots to the sequence, which is created if necessary. Returns
  // ResourceExhausted, with the numbers and without effect, if fewer are free.
  absl::Status Append(SequenceId id, int count);

  // Takes `count` scratch slots for the sequence. Errors as Append.
  absl::StatusOr<std::vector<int32_t>> TakeScratch(SequenceId id, int count);

  // Appends scratch slots of this sequence to it, in the given order.
  absl::Status CommitScratch(SequenceId id, absl::Span<const int32_t> scratch);

  // Frees the remaining scratch slots of the sequence.
  void DropScratch(SequenceId id);

  // Frees the slots of all positions from `length` on; no effect on a shorter sequence.
  void Truncate(SequenceId id, int length);

  // Frees everything that the sequence holds and removes it.
  void Release(SequenceId id);

  // Recounts all slots. Returns Internal, with the slot, if one is leaked or has two owners.
  absl::Status CheckInvariants() const;

 private:
  struct Sequence {
    std::vector<int32_t> slots;
    std::vector<int32_t> scratch;
    std::vector<int> blocks;  // of its first positions
    SlotPool::PageList page_list;
  };
  // A full one, or (a short one) of fewer tokens, which no sequence uses as a whole, and none
  // continues.
  struct Block {
    int parent = -1;  // the previous full block, or its namespace
    std::vector<int> tokens;
    std::vector<int32_t> slots;
    int users = 0;     // sequences that list it
    int children = 0;  // blocks that continue it
    int depth = 0;     // blocks before it
    int64_t last_use = 0;
    double entered = 0, touched = 0;  // times, as of SetTime
  };
  // The parent of first blocks; exists as long as there are any.
  struct Space {
    std::pair<int, std::string> name;
    int children = 0;
  };
  using IdleKey = std::tuple<int64_t, int, int>;  // last use, minus depth, block
  // A block among those with the same parent, ordered by tokens: the block with the longest common
  // prefix is next to any given tokens.
  struct Continuation {
    int parent;
    std::array<int, kBlock> tokens;  // -1 beyond the end of a partial block
    int block;
    auto operator<=>(const Continuation&) const = default;
  };
  struct Owners {
    int all = 0;     // owners
    int active = 0;  // of these: sequences, and blocks that sequences use
  };

  absl::Status CanTake(int count) const;
  void Take(int count, Sequence& of, std::vector<int32_t>& out);
  int FindBlock(int parent, absl::Span<const int> tokens) const;  // -1: none
  // Returns the length of the longest common prefix with a child of `parent`, and that block (-1:
  // none).
  std::pair<int, int> MostInCommon(int parent, absl::Span<const int> tokens) const;
  static Continuation ContinuationOf(int parent, absl::Span<const int> tokens, int block);
  // Creates a block from slots of a sequence. If the sequence is the only user, the block takes
  // over its ownership.
  int NewBlock(int parent, absl::Span<const int> tokens, absl::Span<const int32_t> slots,
               int users);
  void Own(int32_t slot);     // for a sequence
  void Disown(int32_t slot);  // for a sequence
  void Use(int block);
  void Unuse(int block);
  void Touch(int block);
  void PopSlot(Sequence& sequence);
  void EvictOne();
  void NotePeak();

  // The parent of first blocks, below 0. FindRoot returns 0 if the namespace has no block.
  int FindRoot(const KvNamespace& space) const;
  int RootOf(const KvNamespace& space);
  static int RootAt(size_t index) { return -1 - static_cast<int>(index); }
  Space& SpaceAt(int root) { return spaces_[-1 - root]; }
  static uint64_t Key(int parent, absl::Span<const int> tokens);
  static IdleKey KeyOf(int block, const Block& b) { return {b.last_use, -b.depth, block}; }

  int total_;
  SlotPool pool_;
  absl::flat_hash_map<SequenceId, Sequence> sequences_;
  std::vector<Block> blocks_;
  std::vector<int> unused_blocks_;  // free entries of blocks_
  std::vector<Space> spaces_;
  std::vector<int> unused_spaces_;                               // their roots
  absl::flat_hash_map<std::pair<int, std::string>, int> roots_;  // of the namespaces with blocks
  absl::flat_hash_map<uint64_t, std::vector<int>> index_;        // by Key
  std::set<Continuation> continuations_;                         // all blocks
  std::set<IdleKey> evictable_;                                  // no users, no children
  std::vector<Owners> owners_;                                   // by slot
  int idle_slots_ = 0;                                           // with owners, none of them active
  int64_t clock_ = 0;                                            // logical time, for last_use
  double now_ = 0;
  BlockTimes block_times_;
  int peak_used_ = 0;
  int64_t committed_total_ = 0;
  int64_t scratch_total_ = 0;
  int64_t attached_total_ = 0;
  int64_t evicted_total_ = 0;
};

}  // namespace espalier
