// Placement of slots: adjacent for each sequence under concurrent allocation, and every slot can be
// allocated.
#include "serving/kv/slot_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace espalier {
namespace {

// The number of pages that the slots are in.
size_t Pages(const std::vector<int32_t>& slots) {
  std::set<int> pages;
  for (const int32_t slot : slots) pages.insert(slot / SlotPool::kPage);
  return pages.size();
}

TEST(SlotPool, InterleavedSequencesFillSeparatePages) {
  SlotPool pool(64 * 64);
  std::vector<SlotPool::PageList> homes(16);
  std::vector<std::vector<int32_t>> slots(homes.size());
  for (int step = 0; step < 100; ++step) {
    for (size_t i = 0; i < homes.size(); ++i) {
      pool.TrimPages(homes[i]);
      pool.Allocate(1, homes[i], slots[i]);
    }
  }
  for (const std::vector<int32_t>& of : slots) {
    EXPECT_EQ(Pages(of), 7u);  // 100 slots
    EXPECT_TRUE(std::is_sorted(of.begin(), of.begin() + SlotPool::kPage));
  }
}

// Trees take slots and release most of them.
TEST(SlotPool, ReleasedScratchLeavesNoGaps) {
  SlotPool pool(4096);
  std::mt19937 random(3);
  std::vector<SlotPool::PageList> homes(8);
  std::vector<std::vector<int32_t>> slots(homes.size());
  for (int step = 0; step < 60; ++step) {
    std::vector<std::vector<int32_t>> scratch(homes.size());
    for (size_t i = 0; i < homes.size(); ++i) pool.Allocate(9, homes[i], scratch[i]);
    for (size_t i = 0; i < homes.size(); ++i) {
      const size_t kept = 1 + random() % 4;
      slots[i].insert(slots[i].end(), scratch[i].begin(), scratch[i].begin() + kept);
      for (size_t s = kept; s < scratch[i].size(); ++s) pool.Release(scratch[i][s]);
      pool.TrimPages(homes[i]);
    }
  }
  for (const std::vector<int32_t>& of : slots) {
    EXPECT_LE(Pages(of), of.size() / SlotPool::kPage + 2) << of.size();
  }
}

TEST(SlotPool, EverySlotIsAllocatableAndNoneTwice) {
  for (const int total : {1, 15, 16, 17, 100}) {
    SlotPool pool(total);
    SlotPool::PageList one, other;
    std::vector<int32_t> taken;
    pool.Allocate(1, one, taken);
    EXPECT_EQ(pool.free(), total - 1);
    pool.Allocate(total - 1, other, taken);
    EXPECT_EQ(pool.free(), 0);
    EXPECT_TRUE(pool.FreeSlots().empty());
    std::sort(taken.begin(), taken.end());
    for (int slot = 0; slot < total; ++slot) EXPECT_EQ(taken[slot], slot);
    for (const int32_t slot : taken) pool.Release(slot);
    EXPECT_EQ(pool.free(), total);
    EXPECT_EQ(static_cast<int>(pool.FreeSlots().size()), total);
  }
}

TEST(SlotPool, ReleasedPagesAreReusedByAnotherSequence) {
  SlotPool pool(64);
  SlotPool::PageList one, other, third;
  std::vector<int32_t> first, second, last;
  pool.Allocate(40, one, first);
  pool.Allocate(4, other, second);
  for (const int32_t slot : first) pool.Release(slot);
  pool.ReleasePages(one);
  pool.Allocate(48, third, last);
  EXPECT_EQ(Pages(last), 3u);
  EXPECT_EQ(pool.free(), 12);
}

}  // namespace
}  // namespace espalier
