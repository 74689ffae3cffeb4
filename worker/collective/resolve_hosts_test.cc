#include "worker/collective/resolve_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/time/clock.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kSlow = absl::Milliseconds(300);

// A resolver for which only addresses are quick.
absl::StatusOr<Addresses> SlowNames(const HostPort& wanted, int flags) {
  if ((flags & AI_NUMERICHOST) != 0) return ResolveHost(wanted, flags);
  absl::SleepFor(wanted.host == "lost" ? absl::Seconds(2) : kSlow);
  return ResolveHost({"127.0.0.1", wanted.port}, flags);
}

TEST(ResolveHosts, NamesAreResolvedAtTheSameTime) {
  const absl::Time begin = absl::Now();
  const auto found =
      ResolveHosts(std::vector<HostPort>(8, {"a-name", "80"}), absl::InfiniteFuture(), SlowNames);
  EXPECT_LT(absl::Now() - begin, 4 * kSlow);
  ASSERT_EQ(found.size(), 8);
  for (const auto& addresses : found) EXPECT_TRUE(addresses.ok()) << addresses.status();
}

TEST(ResolveHosts, ANameServerThatDoesNotAnswerHoldsUpNobodyForLong) {
  const absl::Time begin = absl::Now();
  const auto found =
      ResolveHosts({{"10.0.0.1", "80"}, {"lost", "80"}, {"::1", "80"}, {"a-name", "80"}},
                   begin + 2 * kSlow, SlowNames);
  EXPECT_LT(absl::Now() - begin, 4 * kSlow);
  EXPECT_TRUE(found[0].ok() && found[2].ok() && found[3].ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(found[1].status()));
  EXPECT_THAT(std::string(found[1].status().message()), HasSubstr("host 'lost'"));
}

TEST(ResolveHosts, AHostThatThereIsNotIsNamed) {
  const auto found = ResolveHosts({{"127.0.0.1", "80"}, {"no host", "80"}}, absl::InfiniteFuture());
  EXPECT_TRUE(found[0].ok());
  EXPECT_THAT(std::string(found[1].status().message()), HasSubstr("host 'no host'"));
}

}  // namespace
}  // namespace espalier
