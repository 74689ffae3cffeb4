#include "base/backoff.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> Millis(Backoff* backoff, int pauses) {
  std::vector<int64_t> out;
  for (int i = 0; i < pauses; ++i) out.push_back(absl::ToInt64Milliseconds(backoff->Take()));
  return out;
}

TEST(Backoff, GrowsUpToTheLongestAndBeginsAnewAfterASuccess) {
  Backoff backoff(absl::Milliseconds(100), absl::Milliseconds(500));
  EXPECT_EQ(backoff.next(), absl::Milliseconds(100));
  EXPECT_THAT(Millis(&backoff, 5), ElementsAre(100, 200, 400, 500, 500));
  backoff.Reset();
  EXPECT_THAT(Millis(&backoff, 2), ElementsAre(100, 200));
  Backoff fast(absl::Seconds(1), absl::Seconds(10), 4);
  EXPECT_THAT(Millis(&fast, 3), ElementsAre(1000, 4000, 10000));
  Backoff even(absl::Seconds(2), absl::Seconds(1));
  EXPECT_THAT(Millis(&even, 2), ElementsAre(1000, 1000));
}

TEST(MayPass, IsFalseForWhatIsRefused) {
  EXPECT_TRUE(MayPass(absl::UnavailableError("")));
  EXPECT_TRUE(MayPass(absl::DeadlineExceededError("")));
  EXPECT_FALSE(MayPass(absl::OkStatus()));
  EXPECT_FALSE(MayPass(absl::PermissionDeniedError("")));
  EXPECT_FALSE(MayPass(absl::FailedPreconditionError("")));
}

}  // namespace
}  // namespace espalier
