#include "serving/kv/kv_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr double kBlockSeconds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
                                    0.5,   1,     2,     5,    10,   30,   60,  120,
                                    300,   600,   1800,  3600, 7200, 21600};
static_assert(std::size(kBlockSeconds) <= HistogramCounts::kMost);

}  // namespace

KvCache::BlockTimes::BlockTimes()
    : lifetime(kBlockSeconds), idle(kBlockSeconds), reuse_gaps(kBlockSeconds) {}

KvCache::KvCache(int slots) : total_(std::max(slots, 0)), pool_(slots), owners_(total_) {}

KvCache::Statistics KvCache::statistics() const {
  return {.slots = total_,
          .used = total_ - free_slots(),
          .peak_used = peak_used_,
          .cached = idle_slots_,
          .sequences = static_cast<int>(sequences_.size()),
          .committed_total = committed_total_,
          .scratch_total = scratch_total_,
          .attached_total = attached_total_,
          .evicted_total = evicted_total_};
}

int KvCache::scratch_slots() const {
  int scratch = 0;
  for (const auto& [id, sequence] : sequences_) {
    scratch += static_cast<int>(sequence.scratch.size());
  }
  return scratch;
}

int KvCache::length(SequenceId id) const { return static_cast<int>(slots(id).size()); }

absl::Span<const int32_t> KvCache::slots(SequenceId id) const {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return {};
  return it->second.slots;
}

absl::Status KvCache::CanTake(int count) const {
  if (count < 0) return absl::InternalError(absl::StrCat("cannot take ", count, " KV slots"));
  if (count <= free_slots()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(count, " KV slots are needed, ", free_slots(), " of ", total_, " are free"));
}

void KvCache::Take(int count, Sequence& of, std::vector<int32_t>& out) {
  while (count > pool_.free()) EvictOne();
  const size_t first = out.size();
  pool_.Allocate(count, of.page_list, out);
  for (size_t i = first; i < out.size(); ++i) Own(out[i]);
  NotePeak();
}

void KvCache::Own(int32_t slot) {
  Owners& owners = owners_[slot];
  if (owners.all++ > 0 && owners.active == 0) --idle_slots_;
  ++owners.active;
}

void KvCache::Disown(int32_t slot) {
  Owners& owners = owners_[slot];
  --owners.active;
  if (--owners.all == 0) {
    pool_.Release(slot);
  } else if (owners.active == 0) {
    ++idle_slots_;
  }
}

absl::Status KvCache::Append(SequenceId id, int count) {
  if (absl::Status status = CanTake(count); !status.ok()) return status;
  Sequence& sequence = sequences_[id];
  if (sequence.scratch.empty()) pool_.TrimPages(sequence.page_list);
  Take(count, sequence, sequence.slots);
  committed_total_ += count;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> KvCache::TakeScratch(SequenceId id, int count) {
  if (absl::Status status = CanTake(count); !status.ok()) return status;
  std::vector<int32_t> taken;
  Sequence& sequence = sequences_[id];
  Take(count, sequence, taken);
  sequence.scratch.insert(sequence.scratch.end(), taken.begin(), taken.end());
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
  Sequence& sequence = it->second;
  for (const int32_t slot : sequence.scratch) Disown(slot);
  sequence.scratch.clear();
  pool_.TrimPages(sequence.page_list);
}

void KvCache::PopSlot(Sequence& sequence) {
  Disown(sequence.slots.back());
  sequence.slots.pop_back();
}

void KvCache::Truncate(SequenceId id, int length) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  Sequence& sequence = it->second;
  length = std::max(length, 0);
  while (static_cast<int>(sequence.blocks.size()) * kBlock > length) {
    const int block = sequence.blocks.back();
    sequence.blocks.pop_back();
    const int begin = static_cast<int>(sequence.blocks.size()) * kBlock;
    // Free the slots after the block first; the sequence then owns the slots that it keeps of a
    // truncated block.
    while (static_cast<int>(sequence.slots.size()) > begin + kBlock) PopSlot(sequence);
    for (int at = begin; at < length; ++at) Own(sequence.slots[at]);
    sequence.slots.resize(std::max(begin, length));
    Unuse(block);
  }
  while (static_cast<int>(sequence.slots.size()) > length) PopSlot(sequence);
}

void KvCache::Release(SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  Truncate(id, 0);
  DropScratch(id);
  pool_.ReleasePages(it->second.page_list);
  sequences_.erase(it);
}

uint64_t KvCache::Key(int parent, absl::Span<const int> tokens) {
  uint64_t hash = (static_cast<uint64_t>(parent) + 2) * 0x9E3779B97F4A7C15ull;
  for (const int token : tokens) {
    hash = (hash ^ static_cast<uint64_t>(token)) * 0xBF58476D1CE4E5B9ull;
    hash ^= hash >> 29;
  }
  return hash;
}

int KvCache::FindBlock(int parent, absl::Span<const int> tokens) const {
  const auto found = index_.find(Key(parent, tokens));
  if (found == index_.end()) return -1;
  for (const int block : found->second) {
    if (blocks_[block].parent == parent && absl::MakeConstSpan(blocks_[block].tokens) == tokens) {
      return block;
    }
  }
  return -1;
}

int KvCache::FindRoot(const KvNamespace& space) const {
  const auto found = roots_.find({space.adapter, std::string(space.salt)});
  return found == roots_.end() ? 0 : found->second;
}

// REQUIRES: a block is inserted next.
int KvCache::RootOf(const KvNamespace& space) {
  if (const int root = FindRoot(space); root < 0) return root;
  if (unused_spaces_.empty()) {
    unused_spaces_.push_back(RootAt(spaces_.size()));
    spaces_.emplace_back();
  }
  const int root = unused_spaces_.back();
  unused_spaces_.pop_back();
  SpaceAt(root) = {.name = {space.adapter, std::string(space.salt)}};
  roots_[SpaceAt(root).name] = root;
  return root;
}

KvCache::Continuation KvCache::ContinuationOf(int parent, absl::Span<const int> tokens, int block) {
  Continuation out{.parent = parent, .tokens = {}, .block = block};
  out.tokens.fill(-1);
  std::copy_n(tokens.begin(), std::min<size_t>(tokens.size(), kBlock), out.tokens.begin());
  return out;
}

std::pair<int, int> KvCache::MostInCommon(int parent, absl::Span<const int> tokens) const {
  std::pair<int, int> best = {0, -1};
  const auto consider = [&](const Continuation& other) {
    if (other.parent != parent) return;
    const std::vector<int>& its = blocks_[other.block].tokens;
    const auto end = std::mismatch(its.begin(), its.end(), tokens.begin(), tokens.end());
    const auto common = static_cast<int>(end.first - its.begin());
    if (common > best.first) best = {common, other.block};
  };
  const auto after = continuations_.lower_bound(ContinuationOf(parent, tokens, -1));
  if (after != continuations_.end()) consider(*after);
  if (after != continuations_.begin()) consider(*std::prev(after));
  return best;
}

int KvCache::NewBlock(int parent, absl::Span<const int> tokens, absl::Span<const int32_t> slots,
                      int users) {
  int block = static_cast<int>(blocks_.size());
  if (unused_blocks_.empty()) {
    blocks_.emplace_back();
  } else {
    block = unused_blocks_.back();
    unused_blocks_.pop_back();
  }
  Block& b = blocks_[block];
  b = {.parent = parent,
       .tokens = {tokens.begin(), tokens.end()},
       .slots = {slots.begin(), slots.end()},
       .users = users,
       .depth = parent < 0 ? 0 : blocks_[parent].depth + 1,
       .last_use = ++clock_,
       .entered = now_,
       .touched = now_};
  ++(parent < 0 ? SpaceAt(parent).children : blocks_[parent].children);
  index_[Key(parent, tokens)].push_back(block);
  continuations_.insert(ContinuationOf(parent, tokens, block));
  if (users == 0) {
    for (const int32_t slot : slots) ++owners_[slot].all;
    evictable_.insert(KeyOf(block, b));
  }
  return block;
}

void KvCache::Use(int block) {
  Block& b = blocks_[block];
  b.touched = now_;
  if (b.users++ > 0) return;
  for (const int32_t slot : b.slots) {
    if (owners_[slot].active++ == 0) --idle_slots_;
  }
  if (b.children == 0) evictable_.erase(KeyOf(block, b));
}

void KvCache::Unuse(int block) {
  Block& b = blocks_[block];
  b.touched = now_;
  if (--b.users > 0) return;
  for (const int32_t slot : b.slots) {
    if (--owners_[slot].active == 0) ++idle_slots_;
  }
  b.last_use = ++clock_;
  if (b.children == 0) evictable_.insert(KeyOf(block, b));
}

// REQUIRES: a block is idle. Then some idle block has no children: children of an idle block are
// idle, because a sequence uses a chain from its start.
void KvCache::EvictOne() {
  const int block = std::get<2>(*evictable_.begin());
  evictable_.erase(evictable_.begin());
  Block& b = blocks_[block];
  for (const int32_t slot : b.slots) {
    if (--owners_[slot].all > 0) continue;
    pool_.Release(slot);
    --idle_slots_;
  }
  block_times_.lifetime.Count(now_ - b.entered);
  block_times_.idle.Count(now_ - b.touched);
  continuations_.erase(ContinuationOf(b.parent, b.tokens, block));
  std::vector<int>& same = index_[Key(b.parent, b.tokens)];
  same.erase(std::find(same.begin(), same.end(), block));
  if (same.empty()) index_.erase(Key(b.parent, b.tokens));
  if (b.parent >= 0) {
    Block& parent = blocks_[b.parent];
    if (--parent.children == 0 && parent.users == 0) evictable_.insert(KeyOf(b.parent, parent));
  } else if (--SpaceAt(b.parent).children == 0) {
    roots_.erase(SpaceAt(b.parent).name);
    unused_spaces_.push_back(b.parent);
  }
  b = Block();
  unused_blocks_.push_back(block);
  ++evicted_total_;
}

void KvCache::ResetPrefixCache() {
  while (!evictable_.empty()) EvictOne();
}

void KvCache::NotePeak() { peak_used_ = std::max(peak_used_, total_ - free_slots()); }

KvCache::Prefix KvCache::FindPrefix(absl::Span<const int> tokens, const KvNamespace& space) const {
  Prefix out;
  int parent = FindRoot(space);
  if (parent == 0) return out;
  const auto idle = [&](int block, int count) {
    const absl::Span<const int32_t> slots = blocks_[block].slots;
    return static_cast<int>(std::count_if(slots.begin(), slots.begin() + count,
                                          [&](int32_t slot) { return owners_[slot].active == 0; }));
  };
  for (; out.length + kBlock <= static_cast<int>(tokens.size()); out.length += kBlock) {
    const int block = FindBlock(parent, tokens.subspan(out.length, kBlock));
    if (block < 0) break;
    parent = block;
    if (blocks_[block].users == 0) out.idle += idle(block, kBlock);
  }
  const auto [common, block] = MostInCommon(parent, tokens.subspan(out.length));
  if (common > 0) out.idle += idle(block, common);
  out.length += common;
  return out;
}

int KvCache::sequences_with_slots() const {
  return static_cast<int>(
      std::count_if(sequences_.begin(), sequences_.end(),
                    [](const auto& entry) { return !entry.second.slots.empty(); }));
}

int KvCache::shared(SequenceId id) const {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return 0;
  int count = 0;
  // A sequence that uses a block uses all blocks before it. So after the first block without other
  // users, no slot is shared, except partly attached ones.
  for (const int block : it->second.blocks) {
    if (blocks_[block].users < 2) break;
    count += kBlock;
  }
  const std::vector<int32_t>& slots = it->second.slots;
  for (size_t at = static_cast<size_t>(count); at < slots.size(); ++at) {
    if (owners_[slots[at]].active < 2) break;
    ++count;
  }
  return count;
}

int KvCache::AttachPrefix(SequenceId id, absl::Span<const int> tokens, const KvNamespace& space) {
  if (length(id) > 0) return 0;
  const int shared = FindPrefix(tokens, space).length;
  if (shared == 0) return 0;
  Sequence& sequence = sequences_[id];
  int parent = FindRoot(space), at = 0;
  for (; at + kBlock <= shared; at += kBlock) {
    const int block = FindBlock(parent, tokens.subspan(at, kBlock));
    parent = block;
    block_times_.reuse_gaps.Count(now_ - blocks_[block].touched);
    Use(block);
    sequence.blocks.push_back(block);
    sequence.slots.insert(sequence.slots.end(), blocks_[block].slots.begin(),
                          blocks_[block].slots.end());
  }
  if (at < shared) {
    const int block = MostInCommon(parent, tokens.subspan(at)).second;
    block_times_.reuse_gaps.Count(now_ - blocks_[block].touched);
    Touch(block);
    for (int i = 0; i < shared - at; ++i) {
      Own(blocks_[block].slots[i]);
      sequence.slots.push_back(blocks_[block].slots[i]);
    }
  }
  attached_total_ += shared;
  NotePeak();
  return shared;
}

void KvCache::Touch(int block) {
  Block& b = blocks_[block];
  b.touched = now_;
  const bool evictable = evictable_.erase(KeyOf(block, b)) > 0;
  b.last_use = ++clock_;
  if (evictable) evictable_.insert(KeyOf(block, b));
}

void KvCache::CacheBlocks(SequenceId id, absl::Span<const int> tokens, const KvNamespace& space,
                          bool whole) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  Sequence& sequence = it->second;
  const size_t known = std::min(sequence.slots.size(), tokens.size());
  for (;;) {
    const size_t at = sequence.blocks.size() * kBlock;
    const size_t count = std::min<size_t>(known - at, kBlock);
    if (count == 0 || (count < kBlock && !whole)) return;
    const absl::Span<const int> own = tokens.subspan(at, count);
    const absl::Span<int32_t> slots = absl::MakeSpan(sequence.slots).subspan(at, count);
    const int parent = sequence.blocks.empty() ? RootOf(space) : sequence.blocks.back();
    if (count < kBlock) {
      if (const auto [common, block] = MostInCommon(parent, own);
          common == static_cast<int>(count)) {
        Touch(block);
      } else {
        NewBlock(parent, own, slots, 0);
      }
      return;
    }
    int block = FindBlock(parent, own);
    if (block < 0) {
      block = NewBlock(parent, own, slots, 1);
    } else {
      Use(block);
      for (size_t i = 0; i < count; ++i) {
        Disown(slots[i]);
        slots[i] = blocks_[block].slots[i];
      }
    }
    sequence.blocks.push_back(block);
  }
}

}  // namespace espalier
