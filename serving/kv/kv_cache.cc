#include "serving/kv/kv_cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr double kBlockSeconds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
                                    0.5,   1,     2,     5,    10,   30,   60,  120,
                                    300,   600,   1800,  3600, 7200, 21600};
static_assert(std::size(kBlockSeconds) <= SizeCounts::kMost);

}  // namespace

KvCache::BlockTimes::BlockTimes()
    : lifetime(kBlockSeconds), idle(kBlockSeconds), reuse_gaps(kBlockSeconds) {}

KvCache::KvCache(int slots) : total_(std::max(slots, 0)), pool_(slots) {}

KvCache::Statistics KvCache::statistics() const {
  return {.slots = total_,
          .used = total_ - free_slots(),
          .peak_used = peak_used_,
          .cached = kBlock * idle_blocks_,
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
  pool_.Take(count, of.home, out);
  NotePeak();
}

absl::Status KvCache::Append(SequenceId id, int count) {
  if (absl::Status status = CanTake(count); !status.ok()) return status;
  Sequence& sequence = sequences_[id];
  if (sequence.scratch.empty()) pool_.Tidy(sequence.home);
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
  for (const int32_t slot : sequence.scratch) pool_.Give(slot);
  sequence.scratch.clear();
  pool_.Tidy(sequence.home);
}

void KvCache::Truncate(SequenceId id, int length) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  Sequence& sequence = it->second;
  length = std::max(length, 0);
  while (static_cast<int>(sequence.slots.size()) > length) {
    const int in_blocks = static_cast<int>(sequence.blocks.size()) * kBlock;
    if (static_cast<int>(sequence.slots.size()) > in_blocks) {
      pool_.Give(sequence.slots.back());
      sequence.slots.pop_back();
      continue;
    }
    // A block is used whole or not at all: what is cut inside one is computed again.
    Unuse(sequence.blocks.back());
    sequence.blocks.pop_back();
    sequence.slots.resize(sequence.slots.size() - kBlock);
  }
}

void KvCache::Release(SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  Truncate(id, 0);
  DropScratch(id);
  pool_.Leave(it->second.home);
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

int KvCache::FindRoot(const KvSpace& space) const {
  const auto found = roots_.find({space.adapter, std::string(space.salt)});
  return found == roots_.end() ? 0 : found->second;
}

// REQUIRES: a block follows.
int KvCache::RootOf(const KvSpace& space) {
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

int KvCache::NewBlock(int parent, absl::Span<const int> tokens, absl::Span<const int32_t> slots) {
  int block = static_cast<int>(blocks_.size());
  if (unused_blocks_.empty()) {
    blocks_.emplace_back();
  } else {
    block = unused_blocks_.back();
    unused_blocks_.pop_back();
  }
  blocks_[block] = {.parent = parent,
                    .tokens = {tokens.begin(), tokens.end()},
                    .slots = {slots.begin(), slots.end()},
                    .users = 1,
                    .depth = parent < 0 ? 0 : blocks_[parent].depth + 1,
                    .last_use = ++clock_,
                    .entered = now_,
                    .touched = now_};
  ++(parent < 0 ? SpaceAt(parent).children : blocks_[parent].children);
  index_[Key(parent, tokens)].push_back(block);
  return block;
}

void KvCache::Use(int block) {
  Block& b = blocks_[block];
  b.touched = now_;
  if (b.users++ > 0) return;
  --idle_blocks_;
  if (b.children == 0) evictable_.erase(KeyOf(block, b));
}

void KvCache::Unuse(int block) {
  Block& b = blocks_[block];
  b.touched = now_;
  if (--b.users > 0) return;
  ++idle_blocks_;
  b.last_use = ++clock_;
  if (b.children == 0) evictable_.insert(KeyOf(block, b));
}

// REQUIRES: idle_blocks_ > 0. Then some idle block has no children: those that continue an idle one
// are idle too, because a sequence uses a chain from its beginning.
void KvCache::EvictOne() {
  const int block = std::get<2>(*evictable_.begin());
  evictable_.erase(evictable_.begin());
  Block& b = blocks_[block];
  for (const int32_t slot : b.slots) pool_.Give(slot);
  block_times_.lifetime.Count(now_ - b.entered);
  block_times_.idle.Count(now_ - b.touched);
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
  --idle_blocks_;
  ++evicted_total_;
}

void KvCache::ForgetIdle() {
  while (idle_blocks_ > 0) EvictOne();
}

void KvCache::NotePeak() { peak_used_ = std::max(peak_used_, total_ - free_slots()); }

KvCache::Prefix KvCache::FindPrefix(absl::Span<const int> tokens, const KvSpace& space) const {
  Prefix out;
  int block = FindRoot(space);
  if (block == 0) return out;
  for (; out.length + kBlock <= static_cast<int>(tokens.size()); out.length += kBlock) {
    block = FindBlock(block, tokens.subspan(out.length, kBlock));
    if (block < 0) break;
    if (blocks_[block].users == 0) out.idle += kBlock;
  }
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
  // Who uses a block uses those before it: from the first that is used alone, all are.
  for (const int block : it->second.blocks) {
    if (blocks_[block].users < 2) break;
    count += kBlock;
  }
  return count;
}

int KvCache::AttachPrefix(SequenceId id, absl::Span<const int> tokens, const KvSpace& space) {
  if (length(id) > 0) return 0;
  const int shared = FindPrefix(tokens, space).length;
  if (shared == 0) return 0;
  Sequence& sequence = sequences_[id];
  for (int at = 0, block = FindRoot(space); at < shared; at += kBlock) {
    block = FindBlock(block, tokens.subspan(at, kBlock));
    block_times_.reuse_gaps.Count(now_ - blocks_[block].touched);
    Use(block);
    sequence.blocks.push_back(block);
    sequence.slots.insert(sequence.slots.end(), blocks_[block].slots.begin(),
                          blocks_[block].slots.end());
  }
  attached_total_ += shared;
  NotePeak();
  return shared;
}

void KvCache::Publish(SequenceId id, absl::Span<const int> tokens, const KvSpace& space) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  Sequence& sequence = it->second;
  for (;;) {
    const int at = static_cast<int>(sequence.blocks.size()) * kBlock;
    const int end = at + kBlock;
    if (end > static_cast<int>(std::min(sequence.slots.size(), tokens.size()))) return;
    const int parent = sequence.blocks.empty() ? RootOf(space) : sequence.blocks.back();
    const absl::Span<const int> own = tokens.subspan(at, kBlock);
    int block = FindBlock(parent, own);
    if (block < 0) {
      block = NewBlock(parent, own, absl::MakeConstSpan(sequence.slots).subspan(at, kBlock));
    } else {
      Use(block);
      for (int i = 0; i < kBlock; ++i) {
        pool_.Give(sequence.slots[at + i]);
        sequence.slots[at + i] = blocks_[block].slots[i];
      }
    }
    sequence.blocks.push_back(block);
  }
}

absl::Status KvCache::CheckInvariants() const {
  std::vector<int> owners(total_, 0);
  bool in_range = true;
  const auto count = [&](absl::Span<const int32_t> slots) {
    for (const int32_t slot : slots) {
      in_range = in_range && slot >= 0 && slot < total_;
      if (in_range) ++owners[slot];
    }
  };
  count(pool_.FreeSlots());
  std::vector<int> users(blocks_.size(), 0), children(blocks_.size(), 0);
  std::vector<int> of_spaces(spaces_.size(), 0);
  for (const auto& [id, sequence] : sequences_) {
    const int in_blocks = static_cast<int>(sequence.blocks.size()) * kBlock;
    if (in_blocks > static_cast<int>(sequence.slots.size())) {
      return absl::InternalError(absl::StrCat("sequence ", id, " is shorter than its KV blocks"));
    }
    count(absl::MakeConstSpan(sequence.slots).subspan(in_blocks));
    count(sequence.scratch);
    for (size_t i = 0; i < sequence.blocks.size(); ++i) {
      const Block& block = blocks_[sequence.blocks[i]];
      ++users[sequence.blocks[i]];
      const bool follows = i == 0 ? block.parent < 0 : block.parent == sequence.blocks[i - 1];
      if (!follows || absl::MakeConstSpan(sequence.slots).subspan(i * kBlock, kBlock) !=
                          absl::MakeConstSpan(block.slots)) {
        return absl::InternalError(absl::StrCat("sequence ", id, " lists other KV slots than its ",
                                                "block ", sequence.blocks[i], " has"));
      }
    }
  }
  int entries = 0, idle = 0, evictable = 0;
  for (const auto& [key, blocks] : index_) {
    for (const int block : blocks) {
      const Block& b = blocks_[block];
      if (Key(b.parent, b.tokens) != key || b.slots.size() != kBlock) {
        return absl::InternalError(absl::StrCat("KV block ", block, " is filed wrongly"));
      }
      ++entries;
      count(b.slots);
      ++(b.parent < 0 ? of_spaces[-1 - b.parent] : children[b.parent]);
    }
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& b = blocks_[i];
    if (b.users != users[i] || b.children != children[i]) {
      return absl::InternalError(absl::StrCat("KV block ", i, " counts ", b.users, " users and ",
                                              b.children, " children, found ", users[i], " and ",
                                              children[i]));
    }
    if (b.slots.empty() || b.users > 0) continue;
    ++idle;
    if (b.children > 0) continue;
    ++evictable;
    if (!evictable_.contains(KeyOf(static_cast<int>(i), b))) {
      return absl::InternalError(absl::StrCat("KV block ", i, " can never be evicted"));
    }
  }
  for (size_t i = 0; i < spaces_.size(); ++i) {
    const auto found = roots_.find(spaces_[i].name);
    const bool known = found != roots_.end() && found->second == RootAt(i);
    if (spaces_[i].children != of_spaces[i] || known != (of_spaces[i] > 0)) {
      return absl::InternalError(absl::StrCat("space ", i, " counts ", spaces_[i].children,
                                              " first KV blocks, found ", of_spaces[i],
                                              known ? "; it is known" : "; it is not known"));
    }
  }
  if (roots_.size() + unused_spaces_.size() != spaces_.size()) {
    return absl::InternalError("the count of KV spaces is wrong");
  }
  if (idle != idle_blocks_ || evictable != static_cast<int>(evictable_.size()) ||
      entries + unused_blocks_.size() != blocks_.size()) {
    return absl::InternalError("the count of KV blocks is wrong");
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
