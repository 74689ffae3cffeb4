#include "serving/kv/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace espalier {
namespace {

using ::testing::ElementsAre;

TEST(KvCache, AcceptedScratchFollowsTheSequenceInPathOrder) {
  KvCache kv(8);
  ASSERT_TRUE(kv.Append(1, 2).ok());
  const std::vector<int32_t> first(kv.slots(1).begin(), kv.slots(1).end());
  const std::vector<int32_t> tree = *kv.TakeScratch(1, 4);
  ASSERT_TRUE(kv.CommitScratch(1, {tree[2], tree[0]}).ok());
  kv.DropScratch(1);
  EXPECT_THAT(kv.slots(1), ElementsAre(first[0], first[1], tree[2], tree[0]));
  EXPECT_EQ(kv.free_slots(), 4);
  EXPECT_TRUE(kv.CheckInvariants().ok());
  EXPECT_EQ(kv.statistics().peak_used, 6);
}

TEST(KvCache, RefusesMoreThanIsFreeAndChangesNothing) {
  KvCache kv(4);
  ASSERT_TRUE(kv.Append(1, 3).ok());
  const absl::Status status = kv.Append(2, 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "2 KV slots are needed, 1 of 4 are free");
  EXPECT_EQ(kv.TakeScratch(1, 2).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(kv.free_slots(), 1);
  EXPECT_EQ(kv.statistics().sequences, 1);
}

TEST(KvCache, RefusesToCommitASlotTwiceOrOfAnother) {
  KvCache kv(8);
  const std::vector<int32_t> mine = *kv.TakeScratch(1, 2);
  const std::vector<int32_t> other = *kv.TakeScratch(2, 1);
  EXPECT_EQ(kv.CommitScratch(1, {mine[0], mine[0]}).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(kv.CommitScratch(1, {other[0]}).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(kv.length(1), 0);
  EXPECT_TRUE(kv.CheckInvariants().ok());
}

TEST(KvCache, RandomUseLosesAndDoublesNoSlot) {
  std::mt19937 random(1);
  KvCache kv(64);
  for (int i = 0; i < 20000; ++i) {
    const int64_t id = random() % 6;
    switch (random() % 6) {
      case 0:
        (void)kv.Append(id, random() % 9);
        break;
      case 1:
      case 2: {
        const auto tree = kv.TakeScratch(id, random() % 12);
        if (!tree.ok()) break;
        ASSERT_TRUE(
            kv.CommitScratch(id, absl::MakeSpan(*tree).subspan(0, random() % (tree->size() + 1)))
                .ok());
        break;
      }
      case 3:
        kv.DropScratch(id);
        break;
      case 4:
        kv.Truncate(id, random() % 20);
        break;
      case 5:
        kv.Release(id);
        break;
    }
    ASSERT_TRUE(kv.CheckInvariants().ok()) << kv.CheckInvariants();
  }
  for (int64_t id = 0; id < 6; ++id) kv.Release(id);
  EXPECT_EQ(kv.free_slots(), 64);
}

}  // namespace
}  // namespace espalier
