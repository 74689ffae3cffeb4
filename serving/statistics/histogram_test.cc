#include "serving/statistics/histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(HistogramCounts, ABucketIncludesItsUpperBound) {
  static constexpr double kBounds[] = {1, 8, 16};
  HistogramCounts counts(kBounds);
  for (const double value : {0.0, 1.0, 1.5, 8.0, 16.0, 17.0, 1000.0}) counts.Count(value);
  EXPECT_THAT(counts.counts(), ::testing::ElementsAre(2, 2, 1, 2));
  EXPECT_EQ(counts.sum(), 1043.5);
}

}  // namespace
}  // namespace espalier
