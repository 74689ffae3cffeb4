#include "serving/kv/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

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

TEST(KvCache, BlockTimesCountFromInsertionAndLastUse) {
  KvCache kv(2 * KvCache::kBlock);
  const std::vector<int> tokens(KvCache::kBlock, 1), others(2 * KvCache::kBlock, 2);
  kv.SetTime(100);
  ASSERT_TRUE(kv.Append(1, KvCache::kBlock).ok());
  kv.CacheBlocks(1, tokens);
  kv.SetTime(103);
  kv.Release(1);
  EXPECT_EQ(kv.block_times().reuse_gaps.sum(), 0);
  kv.SetTime(110);
  EXPECT_EQ(kv.AttachPrefix(2, tokens), KvCache::kBlock);
  EXPECT_EQ(kv.block_times().reuse_gaps.sum(), 7);
  kv.SetTime(111);
  kv.Release(2);
  EXPECT_EQ(kv.block_times().lifetime.sum(), 0);
  kv.SetTime(141);
  ASSERT_TRUE(kv.Append(3, 2 * KvCache::kBlock).ok());  // needs their slots
  EXPECT_EQ(kv.block_times().lifetime.sum(), 41);
  EXPECT_EQ(kv.block_times().idle.sum(), 30);
  EXPECT_EQ(kv.block_times().reuse_gaps.sum(), 7);
}

TEST(KvCache, RandomOperationsLeakAndDoubleFreeNoSlot) {
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

std::vector<int> Tokens(int count, int first = 0) {
  std::vector<int> out(count);
  for (int i = 0; i < count; ++i) out[i] = first + i;
  return out;
}

TEST(KvCachePrefix, ASequenceSharesItsPrefixToTheToken) {
  KvCache kv(200);
  // An equal second block after another first one is not shared: K and V depend on the tokens
  // before.
  std::vector<int> tokens = Tokens(40);
  ASSERT_TRUE(kv.Append(1, 40).ok());
  kv.CacheBlocks(1, tokens);
  EXPECT_EQ(kv.AttachPrefix(2, tokens), 32);  // two full blocks
  EXPECT_EQ(kv.slots(2), kv.slots(1).subspan(0, 32));
  EXPECT_EQ(kv.statistics().used, 40);
  EXPECT_EQ(kv.shared(1), 32);
  // Different in its second block.
  tokens[20] = 999;
  EXPECT_EQ(kv.FindPrefix(tokens).length, 20);
  EXPECT_EQ(kv.FindPrefix(tokens).idle, 0);
  EXPECT_EQ(kv.AttachPrefix(3, tokens), 20);
  EXPECT_EQ(kv.slots(3), kv.slots(1).subspan(0, 20));
  EXPECT_EQ(kv.statistics().used, 40);
  EXPECT_EQ(kv.shared(3), 20);
  // Equal second block after another first one: nothing, since K and V depend on what is before.
  tokens = Tokens(40);
  tokens[3] = 999;
  EXPECT_EQ(kv.AttachPrefix(4, tokens), 3);
  // Later tokens are in slots of their own.
  ASSERT_TRUE(kv.Append(3, 20).ok());
  ASSERT_TRUE(kv.Append(4, 37).ok());
  std::set<int32_t> all(kv.slots(1).begin(), kv.slots(1).end());
  all.insert(kv.slots(3).begin() + 20, kv.slots(3).end());
  all.insert(kv.slots(4).begin() + 3, kv.slots(4).end());
  EXPECT_EQ(all.size(), 40u + 20 + 37);
  EXPECT_TRUE(kv.CheckInvariants().ok()) << kv.CheckInvariants();
}

TEST(KvCachePrefix, TheBlockWithTheLongestCommonPrefixIsAttached) {
  KvCache kv(400);
  // All start with the same block, and then diverge at increasing positions.
  for (int i = 0; i < 10; ++i) {
    std::vector<int> tokens = Tokens(32);
    tokens[17 + i] = 100 + i;
    kv.AttachPrefix(i, tokens);
    ASSERT_TRUE(kv.Append(i, 32 - kv.length(i)).ok());
    kv.CacheBlocks(i, tokens);
  }
  for (int i = 0; i < 10; ++i) {
    std::vector<int> tokens = Tokens(32);
    EXPECT_EQ(kv.FindPrefix(tokens).length, 26);
    tokens[17 + i] = 100 + i;
    tokens[18 + i] = 999;
    EXPECT_EQ(kv.FindPrefix(tokens).length, 18 + i);
    // Shorter than a block.
    tokens.resize(static_cast<size_t>(20));
    EXPECT_EQ(kv.FindPrefix(tokens).length, std::min(20, 18 + i));
  }
  // Each has only what is new to it: 16 and 16, then what is behind the longest part in common.
  EXPECT_EQ(kv.statistics().used, 32 + (15 + 14 + 13 + 12 + 11 + 10 + 9 + 8 + 7));
}

TEST(KvCachePrefix, PartialBlocksAreFoundIfCached) {
  KvCache kv(64);
  const std::vector<int> tokens = Tokens(24);
  ASSERT_TRUE(kv.Append(1, 23).ok());
  kv.CacheBlocks(1, tokens);
  EXPECT_EQ(kv.FindPrefix(tokens).length, 16);
  kv.CacheBlocks(1, tokens, {}, /*whole=*/true);
  EXPECT_EQ(kv.FindPrefix(tokens).length, 23);
  EXPECT_EQ(kv.statistics().used, 23);
  EXPECT_EQ(kv.statistics().cached, 0);
  kv.CacheBlocks(1, tokens, {}, /*whole=*/true);  // once is enough
  kv.Release(1);
  EXPECT_EQ(kv.free_slots(), 64);
  EXPECT_EQ(kv.statistics().cached, 23);
  EXPECT_EQ(kv.FindPrefix(tokens).idle, 23);
  EXPECT_EQ(kv.AttachPrefix(2, tokens), 23);
  EXPECT_EQ(kv.free_slots(), 41);
  // The block is evicted when slots are needed; slots in use stay.
  ASSERT_TRUE(kv.Append(3, 41).ok());
  EXPECT_FALSE(kv.Append(3, 1).ok());
  EXPECT_EQ(kv.length(2), 23);
  EXPECT_TRUE(kv.CheckInvariants().ok()) << kv.CheckInvariants();
}

TEST(KvCachePrefix, ASequenceCanBeCutInsideABlockThatOthersUse) {
  KvCache kv(100);
  const std::vector<int> tokens = Tokens(48);
  ASSERT_TRUE(kv.Append(1, 48).ok());
  kv.CacheBlocks(1, tokens);
  ASSERT_EQ(kv.AttachPrefix(2, tokens), 48);
  const std::vector<int32_t> before(kv.slots(1).begin(), kv.slots(1).end());
  kv.Truncate(1, 37);
  EXPECT_EQ(kv.length(1), 37);
  EXPECT_TRUE(std::equal(kv.slots(1).begin(), kv.slots(1).end(), before.begin()));
  EXPECT_EQ(kv.shared(1), 37);
  EXPECT_EQ(kv.shared(2), 37);
  EXPECT_EQ(kv.statistics().used, 48);
  kv.Truncate(1, 20);
  EXPECT_EQ(kv.length(1), 20);
  kv.Release(2);
  EXPECT_EQ(kv.statistics().used, 20);
  EXPECT_EQ(kv.statistics().cached, 28);
  EXPECT_TRUE(kv.CheckInvariants().ok()) << kv.CheckInvariants();
}

TEST(KvCachePrefix, EqualBlocksAreDeduplicated) {
  KvCache kv(100);
  const std::vector<int> tokens = Tokens(34);
  for (const int64_t id : {1, 2}) ASSERT_TRUE(kv.Append(id, 34).ok());
  const int32_t tail = kv.slots(2)[33];
  kv.CacheBlocks(1, tokens);
  kv.CacheBlocks(2, tokens);
  EXPECT_EQ(kv.slots(2).subspan(0, 32), kv.slots(1).subspan(0, 32));
  EXPECT_EQ(kv.slots(2)[33], tail);
  EXPECT_EQ(kv.statistics().used, 36);
  EXPECT_TRUE(kv.CheckInvariants().ok()) << kv.CheckInvariants();
}

TEST(KvCachePrefix, BlocksOutOfUseStayUntilTheirSlotsAreNeeded) {
  KvCache kv(64);
  const std::vector<int> old = Tokens(32), recent = Tokens(32, 100);
  ASSERT_TRUE(kv.Append(1, 32).ok());
  kv.CacheBlocks(1, old);
  kv.Release(1);
  ASSERT_TRUE(kv.Append(2, 32).ok());
  kv.CacheBlocks(2, recent);
  kv.Release(2);
  EXPECT_EQ(kv.free_slots(), 64);
  EXPECT_EQ(kv.statistics().used, 0);
  EXPECT_EQ(kv.statistics().cached, 64);
  EXPECT_EQ(kv.FindPrefix(old).length, 32);
  EXPECT_EQ(kv.FindPrefix(old).idle, 32);
  // Of the older chain, the end is evicted first, so the rest is still a prefix.
  ASSERT_TRUE(kv.Append(3, 5).ok());
  EXPECT_EQ(kv.FindPrefix(old).length, 16);
  EXPECT_EQ(kv.FindPrefix(recent).length, 32);
  ASSERT_TRUE(kv.Append(3, 59).ok());
  EXPECT_EQ(kv.FindPrefix(recent).length, 0);
  EXPECT_EQ(kv.statistics().evicted_total, 4);
  EXPECT_FALSE(kv.Append(3, 1).ok());
  EXPECT_TRUE(kv.CheckInvariants().ok()) << kv.CheckInvariants();
}

TEST(KvCachePrefix, BlocksInUseAreNeverEvicted) {
  KvCache kv(48);
  const std::vector<int> tokens = Tokens(32);
  ASSERT_TRUE(kv.Append(1, 32).ok());
  kv.CacheBlocks(1, tokens);
  ASSERT_EQ(kv.AttachPrefix(2, absl::MakeConstSpan(tokens).subspan(0, 16)), 16);
  kv.Release(1);
  EXPECT_EQ(kv.free_slots(), 32);
  const std::vector<int32_t> held(kv.slots(2).begin(), kv.slots(2).end());
  ASSERT_TRUE(kv.Append(3, 32).ok());
  EXPECT_FALSE(kv.Append(3, 1).ok());
  EXPECT_EQ(kv.FindPrefix(tokens).length, 16);
  EXPECT_TRUE(std::equal(held.begin(), held.end(), kv.slots(2).begin()));
}

TEST(KvCachePrefix, SequencesOfDifferentNamespacesShareNothing) {
  const KvNamespace spaces[] = {{}, {.adapter = 1}, {.salt = "a"}, {.adapter = 1, .salt = "a"}};
  KvCache kv(32 * 4);
  const std::vector<int> tokens = Tokens(32, 0);
  for (int round = 0; round < 2; ++round) {
    for (int s = 0; s < 4; ++s) {
      EXPECT_EQ(kv.AttachPrefix(s, tokens, spaces[s]), 0);
      ASSERT_TRUE(kv.Append(s, 32).ok());
      kv.CacheBlocks(s, tokens, spaces[s]);
      EXPECT_EQ(kv.shared(s), 0);
    }
    for (int s = 0; s < 4; ++s) {
      EXPECT_EQ(kv.FindPrefix(tokens, spaces[s]).length, 32);
      EXPECT_EQ(kv.AttachPrefix(100 + s, tokens, spaces[s]), 32);
      EXPECT_EQ(kv.slots(100 + s), kv.slots(s));
    }
    EXPECT_EQ(kv.FindPrefix(tokens, {.salt = "b"}).length, 0);
    EXPECT_EQ(kv.FindPrefix(tokens, {.adapter = 2}).length, 0);
    EXPECT_TRUE(kv.CheckInvariants().ok()) << kv.CheckInvariants();
    for (int s = 0; s < 4; ++s) {
      kv.Release(s);
      kv.Release(100 + s);
    }
    EXPECT_EQ(kv.free_slots(), 128);
    // Blocks of all namespaces can be evicted, and then nothing is left of a namespace.
    ASSERT_TRUE(kv.Append(1, 128).ok());
    for (const KvNamespace& space : spaces) EXPECT_EQ(kv.FindPrefix(tokens, space).length, 0);
    EXPECT_TRUE(kv.CheckInvariants().ok()) << kv.CheckInvariants();
    kv.Release(1);
  }
}

// Random sequences over few tokens, so that they share much. A model records for which tokens and
// namespace each slot was written; listed slots must still hold them.
TEST(KvCachePrefix, RandomOperationsNeverMixTokensOfSequences) {
  std::mt19937 random(2);
  KvCache kv(300);
  std::map<int64_t, std::vector<int>> tokens;
  std::map<int32_t, std::vector<int>> written;  // tokens up to the slot's own
  const auto number_of = [](int64_t id) { return static_cast<int>(id % 3); };
  const auto space_of = [&](int64_t id) {
    return KvNamespace{.adapter = number_of(id) % 2, .salt = number_of(id) == 2 ? "salt" : ""};
  };
  // The namespace and the first `count` tokens of a sequence.
  const auto path = [&](int64_t id, size_t count) {
    std::vector<int> out = {number_of(id)};
    out.insert(out.end(), tokens[id].begin(), tokens[id].begin() + static_cast<int64_t>(count));
    return out;
  };
  const auto write = [&](int64_t id, int from) {
    const absl::Span<const int32_t> slots = kv.slots(id);
    for (size_t i = static_cast<size_t>(from); i < slots.size(); ++i) {
      written[slots[i]] = path(id, i + 1);
    }
  };
  int64_t attached = 0;
  for (int i = 0; i < 30000; ++i) {
    const int64_t id = random() % 8;
    std::vector<int>& t = tokens[id];
    switch (random() % 5) {
      case 0:
      case 1: {
        if (kv.length(id) == 0) {
          // One of few texts, cut anywhere.
          const int text = random() % 3;
          t = Tokens(20 + random() % 80, 0);
          for (size_t k = 0; k < t.size(); ++k) t[k] = k < 24 ? t[k] : t[k] + 1000 * text;
          attached +=
              kv.AttachPrefix(id, absl::MakeConstSpan(t).subspan(0, t.size() - 1), space_of(id));
        }
        const int length = kv.length(id);
        const int more =
            std::min<int>(static_cast<int>(t.size()) - length, 1 + static_cast<int>(random() % 30));
        if (more > 0 && kv.Append(id, more).ok()) write(id, length);
        break;
      }
      case 2: {
        const auto tree = kv.TakeScratch(id, random() % 6);
        if (!tree.ok() || tree->empty()) break;
        const int length = kv.length(id);
        if (static_cast<int>(t.size()) > length) t.resize(length);
        t.push_back(static_cast<int>(random() % 2));
        ASSERT_TRUE(kv.CommitScratch(id, {tree->back()}).ok());
        kv.DropScratch(id);
        write(id, length);
        break;
      }
      case 3:
        kv.CacheBlocks(id, t, space_of(id), random() % 2);
        break;
      case 4:
        if (random() % 3 == 0) kv.Release(id);
        if (random() % 8 == 0) {
          const int to = static_cast<int>(random() % 60), length = kv.length(id);
          kv.Truncate(id, to);
          ASSERT_EQ(kv.length(id), std::min(to, length));
        }
        break;
    }
    ASSERT_TRUE(kv.CheckInvariants().ok()) << kv.CheckInvariants();
    for (const auto& [one, text] : tokens) {
      const absl::Span<const int32_t> slots = kv.slots(one);
      for (size_t k = 0; k < slots.size(); ++k) {
        ASSERT_EQ(written[slots[k]], path(one, k + 1));
      }
    }
  }
  EXPECT_GT(attached, 10000);
  for (int64_t id = 0; id < 8; ++id) kv.Release(id);
  EXPECT_EQ(kv.free_slots(), 300);
}

}  // namespace
}  // namespace espalier
