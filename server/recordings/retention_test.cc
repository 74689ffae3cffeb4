#include "server/recordings/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<KeptCheckpoint> Every(int64_t steps, int64_t count, int64_t bytes = 10) {
  std::vector<KeptCheckpoint> checkpoints;
  for (int64_t i = 1; i <= count; ++i) checkpoints.push_back({i * steps, bytes, false});
  return checkpoints;
}

std::vector<KeptCheckpoint> Without(const std::vector<KeptCheckpoint>& checkpoints,
                                    const std::vector<size_t>& removed) {
  std::vector<KeptCheckpoint> left;
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    if (!std::binary_search(removed.begin(), removed.end(), i)) left.push_back(checkpoints[i]);
  }
  return left;
}

std::vector<int64_t> Steps(const std::vector<KeptCheckpoint>& checkpoints) {
  std::vector<int64_t> steps;
  for (const KeptCheckpoint& checkpoint : checkpoints) steps.push_back(checkpoint.steps_done);
  return steps;
}

int64_t Bytes(const std::vector<KeptCheckpoint>& checkpoints) {
  int64_t bytes = 0;
  for (const KeptCheckpoint& checkpoint : checkpoints) bytes += checkpoint.bytes;
  return bytes;
}

TEST(RetentionTest, WithoutLimitsAllStay) {
  EXPECT_THAT(ChooseRemoved(Every(10, 100), {}).indices, IsEmpty());
  EXPECT_THAT(ChooseRemoved({}, {.keep = 1, .max_bytes = 1}).indices, IsEmpty());
}

TEST(RetentionTest, TheNewestStayAndTheBest) {
  std::vector<KeptCheckpoint> checkpoints = Every(10, 6);
  checkpoints[1].stays = true;
  const RemovedCheckpoints removed = ChooseRemoved(checkpoints, {.keep = 3});
  EXPECT_FALSE(removed.thinned);
  EXPECT_THAT(Steps(Without(checkpoints, removed.indices)), ElementsAre(20, 40, 50, 60));
  // A job that goes on may need two.
  EXPECT_THAT(Steps(Without(checkpoints, ChooseRemoved(checkpoints, {.keep = 1}).indices)),
              ElementsAre(20, 50, 60));
}

TEST(RetentionTest, ThinningTakesEverySecondOne) {
  const std::vector<KeptCheckpoint> checkpoints = Every(10, 10);
  EXPECT_THAT(Steps(Without(checkpoints, ThinOut(checkpoints))),
              ElementsAre(20, 40, 60, 80, 90, 100));
  EXPECT_THAT(ThinOut(Every(10, 2)), IsEmpty());
  EXPECT_THAT(ThinOut({}), IsEmpty());
}

TEST(RetentionTest, ThinningSparesTheBestAndTheLastTwo) {
  std::vector<KeptCheckpoint> checkpoints = Every(10, 8);
  checkpoints[2].stays = true;
  for (int i = 0; i < 10; ++i) checkpoints = Without(checkpoints, ThinOut(checkpoints));
  EXPECT_THAT(Steps(checkpoints), ElementsAre(30, 70, 80));
}

TEST(RetentionTest, OneThatWasRequestedBetweenTwoGoesFirst) {
  std::vector<KeptCheckpoint> checkpoints = Every(100, 6);
  checkpoints.insert(checkpoints.begin() + 2, {201, 10, false});
  EXPECT_THAT(Steps(Without(checkpoints, ThinOut(checkpoints))),
              ElementsAre(100, 200, 300, 400, 500, 600));
}

TEST(RetentionTest, TheLimitHoldsAndDistancesStayEven) {
  constexpr int64_t kMost = 200;
  std::vector<KeptCheckpoint> checkpoints;
  int thinnings = 0;
  for (int64_t step = 10; step <= 20000; step += 10) {
    checkpoints.push_back({step, 10, false});
    const RemovedCheckpoints removed = ChooseRemoved(checkpoints, {.max_bytes = kMost});
    thinnings += removed.thinned ? 1 : 0;
    checkpoints = Without(checkpoints, removed.indices);
    ASSERT_LE(Bytes(checkpoints), kMost);
    ASSERT_GE(checkpoints.size(), std::min<size_t>(static_cast<size_t>(step / 10), 6));
    // In the thinned part and among those that came since.
    std::vector<int64_t> distances;
    for (size_t i = 0; i + kLastThatStay < checkpoints.size(); ++i) {
      distances.push_back(checkpoints[i].steps_done - (i == 0 ? 0 : checkpoints[i - 1].steps_done));
    }
    if (!removed.thinned || distances.empty()) continue;
    const auto [least, most] = std::minmax_element(distances.begin(), distances.end());
    ASSERT_LE(*most, 2 * *least) << "after step " << step;
  }
  EXPECT_LT(thinnings, 20000 / 10 / 5);  // not with every checkpoint
}

TEST(RetentionTest, WhatMustStayStaysBeyondTheLimit) {
  const std::vector<KeptCheckpoint> checkpoints = Every(10, 5, 1000);
  const RemovedCheckpoints removed = ChooseRemoved(checkpoints, {.max_bytes = 1});
  EXPECT_THAT(Steps(Without(checkpoints, removed.indices)), ElementsAre(40, 50));
  EXPECT_TRUE(removed.thinned);
  EXPECT_FALSE(ChooseRemoved(Every(10, 2, 1000), {.max_bytes = 1}).thinned);
}

TEST(RetentionTest, OnesThatAreCloserThanUsefulGo) {
  std::vector<KeptCheckpoint> checkpoints = Every(10, 12);
  checkpoints[4].stays = true;
  const RemovedCheckpoints removed = ChooseRemoved(checkpoints, {.least_distance = 40});
  EXPECT_THAT(Steps(Without(checkpoints, removed.indices)), ElementsAre(40, 50, 90, 110, 120));
  EXPECT_FALSE(removed.thinned) << "nobody asked for so many";
}

TEST(RetentionTest, APartOfTheDiskIsToBeFree) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(MissingRoom({.free_bytes = 2 * kGiB, .all_bytes = 100 * kGiB}), 0);
  EXPECT_EQ(MissingRoom({.free_bytes = 2 * kGiB - 1, .all_bytes = 100 * kGiB}), 2 * kGiB);
  EXPECT_EQ(MissingRoom({.free_bytes = 4 * kGiB, .all_bytes = 9000 * kGiB}), 0) << "at most 4 GiB";
  EXPECT_EQ(MissingRoom({.free_bytes = 3 * kGiB, .all_bytes = 9000 * kGiB}), 4 * kGiB);
  EXPECT_EQ(MissingRoom({}), 0) << "not known";
}

}  // namespace
}  // namespace espalier
