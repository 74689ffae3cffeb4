#include "server/replay/segments.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace espalier {
namespace {

std::set<int64_t> StepsOf(const LoggedSteps& logged) {
  std::set<int64_t> steps;
  for (int64_t s = logged.first; s < logged.end; s += logged.every) steps.insert(s);
  return steps;
}

TEST(PartOfSteps, PartsAreContiguousNearlyEqualAndTheLargerOnesComeFirst) {
  const LoggedSteps all{10, 33, 2};  // 12 steps
  std::set<int64_t> together;
  std::vector<int64_t> sizes;
  for (int64_t part = 1; part <= 5; ++part) {
    const LoggedSteps steps = *PartOfSteps(all, part, 5);
    sizes.push_back(steps.count());
    for (const int64_t step : StepsOf(steps)) {
      EXPECT_TRUE(together.empty() || step > *together.rbegin());
      together.insert(step);
    }
  }
  EXPECT_EQ(together, StepsOf(all));
  EXPECT_EQ(sizes, (std::vector<int64_t>{3, 3, 2, 2, 2}));
}

TEST(PartOfSteps, MorePartsThanStepsLeaveEmptyOnes) {
  EXPECT_EQ(PartOfSteps({0, 2, 1}, 2, 5)->count(), 1);
  EXPECT_EQ(PartOfSteps({0, 2, 1}, 3, 5)->count(), 0);
}

TEST(PartOfSteps, ANumberOutsideIsRefusedAndSaysHowTheyCount) {
  for (const auto& [part, parts] : {std::pair(0, 5), {6, 5}, {1, 0}}) {
    const absl::Status status = PartOfSteps({0, 10, 1}, part, parts).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_NE(status.message().find("from 1"), std::string::npos) << status;
  }
}

TEST(CutSegments, ARangeBeginsAtTheLastCheckpointBeforeIt) {
  SegmentRequest request{{45, 55, 1}, {10, 20, 40, 50}, {0}, 1, 1, 1};
  EXPECT_EQ(CutSegments(request), (std::vector<SegmentCut>{{40, {45, 55, 1}}}));
  request.checkpoints = {60};
  EXPECT_EQ(CutSegments(request), (std::vector<SegmentCut>{{0, {45, 55, 1}}}));
}

TEST(CutSegments, RareStepsSkipWhatCheckpointsSpare) {
  // Steps 5, 105 and 205; a checkpoint every 10 steps.
  SegmentRequest request{{5, 300, 100}, {}, {0}, 1, 1.0, 2.0};
  for (int64_t c = 10; c <= 300; c += 10) request.checkpoints.push_back(c);
  EXPECT_EQ(
      CutSegments(request),
      (std::vector<SegmentCut>{{0, {5, 6, 100}}, {100, {105, 106, 100}}, {200, {205, 206, 100}}}));
  request.load_seconds = 1000;  // reading a checkpoint takes longer than training
  EXPECT_EQ(CutSegments(request), (std::vector<SegmentCut>{{0, {5, 206, 100}}}));
}

TEST(CutSegments, AnAttemptEndsASegment) {
  const SegmentRequest request{{0, 100, 1}, {20, 40, 60}, {0, 40}, 1, 1, 1};
  EXPECT_EQ(CutSegments(request), (std::vector<SegmentCut>{{0, {0, 40, 1}}, {40, {40, 100, 1}}}));
}

TEST(CutSegments, WorkersGetPartsOfAboutTheSameLength) {
  SegmentRequest request{{0, 100, 1}, {}, {0}, 4, 1, 1};
  for (int64_t c = 5; c < 100; c += 5) request.checkpoints.push_back(c);
  const std::vector<SegmentCut> segments = CutSegments(request);
  ASSERT_EQ(segments.size(), 4u);
  for (const SegmentCut& segment : segments) EXPECT_NEAR(segment.steps(), 25, 5);
}

TEST(CutSegments, ThreeWorkersGetAThirdEach) {
  const SegmentRequest request{{0, 60, 1}, {10, 20, 30, 40, 50}, {0}, 3, 1, 1};
  EXPECT_EQ(CutSegments(request),
            (std::vector<SegmentCut>{{0, {0, 20, 1}}, {20, {20, 40, 1}}, {40, {40, 60, 1}}}));
}

TEST(CutSegments, WhateverIsCutEveryLoggedStepIsInOneSegmentThatBeginsAtACheckpoint) {
  std::mt19937 random(3);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    SegmentRequest request;
    request.logged.first = draw(0, 50);
    request.logged.end = request.logged.first + draw(0, 100);
    request.logged.every = draw(1, 20);
    std::set<int64_t> checkpoints, attempts = {0};
    for (int64_t i = draw(0, 12); i > 0; --i) checkpoints.insert(draw(1, 160));
    for (int64_t i = draw(0, 3); i > 0; --i) attempts.insert(draw(1, 160));
    request.checkpoints.assign(checkpoints.begin(), checkpoints.end());
    request.attempts.assign(attempts.begin(), attempts.end());
    request.most_at_once = static_cast<int>(draw(1, 6));
    request.step_seconds = 1;
    request.load_seconds = static_cast<double>(draw(0, 20));
    std::set<int64_t> found;
    for (const SegmentCut& segment : CutSegments(request)) {
      EXPECT_TRUE(segment.checkpoint == 0 || checkpoints.contains(segment.checkpoint));
      EXPECT_LE(segment.checkpoint, segment.logged.first);
      EXPECT_GT(segment.logged.count(), 0);
      for (const int64_t step : StepsOf(segment.logged)) EXPECT_TRUE(found.insert(step).second);
      for (const int64_t border : attempts) {
        const bool crosses = segment.checkpoint < border && border < segment.logged.end &&
                             border > segment.logged.first;
        EXPECT_FALSE(crosses && checkpoints.contains(border)) << "round " << round;
      }
    }
    EXPECT_EQ(found, StepsOf(request.logged)) << "round " << round;
  }
}

}  // namespace
}  // namespace espalier
