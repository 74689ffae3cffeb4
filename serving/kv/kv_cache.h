// Who owns which slot of a model's KV cache. A slot holds K and V of one token in every layer; the
// pool numbers them 0..slots-1. A sequence is a list of slots in order of position; besides, it may
// hold scratch slots: the nodes of a draft tree, which either join the list (commit) or go back
// (drop).
//
// Sequences that begin with the same tokens share slots, because K and V of a token depend on it
// and on what came before it alone, bit for bit. What is shared is found by blocks of kBlock
// tokens: CacheBlocks enters every full one under (the block before it, its tokens), and if asked what
// is left over, as a short one. AttachPrefix starts a sequence with the longest chain of full
// blocks that its tokens begin with, and of the blocks that continue these with the first slots of
// the one that has most tokens in common. A slot is written once while anyone has it, so sequences
// part inside a block without a copy: where others would copy on write, each goes on in slots of
// its own. Sequences of different spaces share nothing. Blocks that no sequence uses stay until
// their slots are needed: the least recently used goes first, and no block before those that
// continue it.
//
// Invariant: a slot's owners are the sequences that have it beyond their blocks, or as scratch, and
// the blocks that list it; it is free if it has none. Operations check it where it could break and
// answer Internal without changing anything.
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

// Which sequences may share blocks: those of one adapter, which makes K and V of its own, and of
// one salt, which keeps users from learning by the clock what others have asked.
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
    int used = 0;       // by sequences, each slot once; scratch included
    int peak_used = 0;  // since construction
    int cached = 0;     // in blocks alone that no sequence uses now; they count as free
    int sequences = 0;
    int64_t committed_total = 0;  // slots that ever became part of a sequence
    int64_t scratch_total = 0;    // slots that were ever handed out as scratch
    int64_t attached_total = 0;   // slots that sequences took over from blocks
    int64_t evicted_total = 0;    // blocks that were given up
  };

  // Seconds.
  struct BlockTimes {
    HistogramCounts lifetime;    // of blocks that were given up: since they were entered
    HistogramCounts idle;        // likewise: since a sequence last took them or let them go
    HistogramCounts reuse_gaps;  // of blocks that a sequence takes again: the same
    BlockTimes();
  };

  explicit KvCache(int slots);

  // What the clock says, for block_times(); 0 until then.
  void SetTime(double seconds) { now_ = seconds; }
  const BlockTimes& block_times() const { return block_times_; }

  // Those that can be had, blocks out of use included.
  int free_slots() const { return pool_.free() + idle_slots_; }
  Statistics statistics() const;

  // Positions of the sequence that have a slot; 0 for one that is not known.
  int length(SequenceId id) const;
  // In order of position. Valid until the next call that changes the sequence.
  absl::Span<const int32_t> slots(SequenceId id) const;

  int sequences_with_slots() const;
  int scratch_slots() const;  // of all sequences

  // How many positions a new sequence of these tokens could take over, and how many of those count
  // as free now.
  struct Prefix {
    int length = 0;
    int idle = 0;
  };
  Prefix FindPrefix(absl::Span<const int> tokens, const KvNamespace& space = {}) const;

  // Slots of the sequence that it does not have alone: releasing it would not free them.
  int shared(SequenceId id) const;

  // Gives an empty sequence the longest known prefix of `tokens`; returns its length. No effect (0)
  // on a sequence that has slots.
  int AttachPrefix(SequenceId id, absl::Span<const int> tokens, const KvNamespace& space = {});

  // Enters the full blocks of the sequence, whose tokens these are (at least length(id) of them),
  // into the index. Where an equal block is known, its slots replace the sequence's own, which are
  // freed. Not between the run of a batch and its commit: slots may change. A sequence has the same
  // space in all calls. `whole`: the tokens behind the last full block, too.
  void CacheBlocks(SequenceId id, absl::Span<const int> tokens, const KvNamespace& space = {},
               bool whole = false);

  // Forgets all blocks that no sequence uses: what they hold can no longer be trusted.
  void ResetPrefixCache();

  // Adds `count` slots at the end of the sequence, which is created if need be. ResourceExhausted
  // with the numbers if fewer are free; nothing changes then.
  absl::Status Append(SequenceId id, int count);

  // Hands out `count` scratch slots for the sequence. Errors as Append.
  absl::StatusOr<std::vector<int32_t>> TakeScratch(SequenceId id, int count);

  // Moves scratch slots of this sequence to its end, in the order given.
  absl::Status CommitScratch(SequenceId id, absl::Span<const int32_t> scratch);

  // Frees the scratch slots of the sequence that were not committed.
  void DropScratch(SequenceId id);

  // Gives up the slots of all positions from `length` on; no effect if it is shorter.
  void Truncate(SequenceId id, int length);

  // Gives up everything that the sequence has and forgets it.
  void Release(SequenceId id);

  // Counts all slots anew. Internal with the slot if one is lost or has two owners.
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
    int parent = -1;  // the full block before it, or its space
    std::vector<int> tokens;
    std::vector<int32_t> slots;
    int users = 0;     // sequences that list it
    int children = 0;  // blocks that continue it
    int depth = 0;     // blocks before it
    int64_t last_use = 0;
    double entered = 0, touched = 0;  // when, as SetTime has it
  };
  // Stands before the first blocks of its sequences, as long as there are any.
  struct Space {
    std::pair<int, std::string> name;
    int children = 0;
  };
  using IdleKey = std::tuple<int64_t, int, int>;  // last use, minus depth, block
  // A block among those that continue the same one, in the order of their tokens: who has most in
  // common with others stands next to them.
  struct Continuation {
    int parent;
    std::array<int, kBlock> tokens;  // a short one's end with -1
    int block;
    auto operator<=>(const Continuation&) const = default;
  };
  struct Owners {
    int all = 0;
    int active = 0;  // of these: sequences, and blocks that sequences use
  };

  absl::Status CanTake(int count) const;
  void Take(int count, Sequence& of, std::vector<int32_t>& out);
  int FindBlock(int parent, absl::Span<const int> tokens) const;  // -1: none
  // How many of the tokens a block that continues `parent` begins with, and which (-1: none).
  std::pair<int, int> MostInCommon(int parent, absl::Span<const int> tokens) const;
  static Continuation ContinuationOf(int parent, absl::Span<const int> tokens, int block);
  // Of slots that a sequence owns now: if it is the only user, they become the block's.
  int NewBlock(int parent, absl::Span<const int> tokens, absl::Span<const int32_t> slots,
               int users);
  void Own(int32_t slot);     // by a sequence
  void Disown(int32_t slot);  // likewise
  void Use(int block);
  void Unuse(int block);
  void Touch(int block);
  void PopSlot(Sequence& sequence);
  void EvictOne();
  void NotePeak();

  // What a first block has for a parent: below 0. 0: the space has no block.
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
  std::vector<int> unused_blocks_;  // entries of blocks_ that stand for nothing
  std::vector<Space> spaces_;
  std::vector<int> unused_spaces_;                               // their roots
  absl::flat_hash_map<std::pair<int, std::string>, int> roots_;  // of the spaces that have blocks
  absl::flat_hash_map<uint64_t, std::vector<int>> index_;        // by Key
  std::set<Continuation> continuations_;                         // all blocks
  std::set<IdleKey> evictable_;                                  // no users, no children
  std::vector<Owners> owners_;                                   // by slot
  int idle_slots_ = 0;                                           // with owners, none active
  int64_t clock_ = 0;                                            // of last_use
  double now_ = 0;
  BlockTimes block_times_;
  int peak_used_ = 0;
  int64_t committed_total_ = 0;
  int64_t scratch_total_ = 0;
  int64_t attached_total_ = 0;
  int64_t evicted_total_ = 0;
};

}  // namespace espalier
