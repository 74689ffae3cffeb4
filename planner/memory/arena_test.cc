#include "planner/memory/arena.h"

#include <random>

#include "gtest/gtest.h"

namespace espalier {
namespace {

TEST(PlaceInArenaTest, NeverOverlapsWhatIsAliveTogether) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<Lifetime> lives;
    for (int i = 0; i < 120; ++i) {
      const int first = static_cast<int>(random() % 100);
      lives.push_back(
          {static_cast<int64_t>(random() % 5000), first, first + static_cast<int>(random() % 20)});
    }
    const ArenaPlan plan = PlaceInArena(lives);
    EXPECT_LE(plan.peak_bytes, plan.bytes);
    for (size_t a = 0; a < lives.size(); ++a) {
      EXPECT_EQ(plan.offsets[a] % kArenaAlignment, 0);
      EXPECT_LE(plan.offsets[a] + lives[a].bytes, plan.bytes);
      for (size_t b = 0; b < a; ++b) {
        if (lives[a].last < lives[b].first || lives[b].last < lives[a].first) continue;
        EXPECT_TRUE(plan.offsets[a] + lives[a].bytes <= plan.offsets[b] ||
                    plan.offsets[b] + lives[b].bytes <= plan.offsets[a]);
      }
    }
  }
}

TEST(PlaceInArenaTest, ReusesMemoryOfDeadBuffers) {
  // A chain, as the forward pass of an inference graph: two neighbours at a time.
  std::vector<Lifetime> lives;
  for (int i = 0; i < 50; ++i) lives.push_back({1024, i, i + 1});
  const ArenaPlan plan = PlaceInArena(lives);
  EXPECT_EQ(plan.bytes, 2048);
  EXPECT_EQ(plan.peak_bytes, 2048);
}

TEST(PlaceInArenaTest, NoBuffersNeedNoMemory) { EXPECT_EQ(PlaceInArena({}).bytes, 0); }

}  // namespace
}  // namespace espalier
