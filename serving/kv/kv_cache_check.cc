// Part of KvCache: CheckInvariants, which recounts everything.
#include "absl/strings/str_cat.h"
#include "serving/kv/kv_cache.h"

namespace espalier {

absl::Status KvCache::CheckInvariants() const {
  std::vector<Owners> owners(total_);
  bool in_range = true;
  const auto count = [&](absl::Span<const int32_t> slots, bool active) {
    for (const int32_t slot : slots) {
      in_range = in_range && slot >= 0 && slot < total_;
      if (!in_range) return;
      ++owners[slot].all;
      owners[slot].active += active;
    }
  };
  std::vector<int> users(blocks_.size(), 0), children(blocks_.size(), 0);
  std::vector<int> of_spaces(spaces_.size(), 0);
  for (const auto& [id, sequence] : sequences_) {
    const int in_blocks = static_cast<int>(sequence.blocks.size()) * kBlock;
    if (in_blocks > static_cast<int>(sequence.slots.size())) {
      return absl::InternalError(absl::StrCat("sequence ", id, " is shorter than its KV blocks"));
    }
    count(absl::MakeConstSpan(sequence.slots).subspan(in_blocks), true);
    count(sequence.scratch, true);
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
  int entries = 0, evictable = 0;
  for (const auto& [key, blocks] : index_) {
    for (const int block : blocks) {
      const Block& b = blocks_[block];
      const bool whole = b.slots.size() == kBlock;
      if (Key(b.parent, b.tokens) != key || b.slots.size() != b.tokens.size() ||
          !continuations_.contains(ContinuationOf(b.parent, b.tokens, block)) ||
          (!whole && b.users + b.children > 0)) {
        return absl::InternalError(absl::StrCat("KV block ", block, " is filed wrongly"));
      }
      ++entries;
      count(b.slots, b.users > 0);
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
  if (evictable != static_cast<int>(evictable_.size()) ||
      entries + unused_blocks_.size() != blocks_.size() ||
      entries != static_cast<int>(continuations_.size())) {
    return absl::InternalError("the count of KV blocks is wrong");
  }
  if (!in_range) return absl::InternalError("a KV slot is outside the pool");
  std::vector<bool> free(total_, false);
  for (const int32_t slot : pool_.FreeSlots()) free[slot] = true;
  int idle = 0;
  for (int slot = 0; slot < total_; ++slot) {
    const auto [all, active] = owners_[slot];
    if (all != owners[slot].all || active != owners[slot].active || free[slot] != (all == 0)) {
      return absl::InternalError(absl::StrCat(
          "KV slot ", slot, " counts ", all, " owners, ", active, " of them active, found ",
          owners[slot].all, " and ", owners[slot].active, free[slot] ? "; it is free" : ""));
    }
    idle += all > 0 && active == 0;
  }
  if (idle != idle_slots_) {
    return absl::InternalError(absl::StrCat(idle_slots_, " KV slots count as idle, found ", idle));
  }
  return absl::OkStatus();
}

}  // namespace espalier
