#include "server/jobs/fair_share.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

TEST(FairShare, WhatWasUsedCountsHalfAfterEachHalfLife) {
  FairShare share({.half_life = absl::Hours(10)});
  share.Charge("ann", 800, kStart);
  EXPECT_DOUBLE_EQ(share.Usage("ann", kStart), 800);
  EXPECT_NEAR(share.Usage("ann", kStart + absl::Hours(10)), 400, 1e-9);
  EXPECT_NEAR(share.Usage("ann", kStart + absl::Hours(30)), 100, 1e-9);
  share.Charge("ann", 100, kStart + absl::Hours(30));
  EXPECT_NEAR(share.Usage("ann", kStart + absl::Hours(40)), 100, 1e-9);
  EXPECT_EQ(share.Usage("bob", kStart), 0);
}

TEST(FairShare, WhatIsHeldCountsInAdvance) {
  FairShare share({.in_advance = absl::Hours(1)});
  share.Hold("ann", 2);
  EXPECT_DOUBLE_EQ(share.Usage("ann", kStart), 7200);
  share.Hold("ann", -2);
  EXPECT_DOUBLE_EQ(share.Usage("ann", kStart), 0);
}

// Two owners with equal demand get equal time, although one came late and has longer jobs.
TEST(FairShare, OwnersGetEqualTimeInTheLongRun) {
  FairShare share;
  absl::Time now = kStart;
  double ann = 0, bob = 0;
  share.Charge("ann", 5000, now);  // before bob came
  for (int i = 0; i < 400; ++i) {
    const bool anns = share.Usage("ann", now) < share.Usage("bob", now);
    const double seconds = anns ? 300 : 40;
    now += absl::Seconds(seconds);
    share.Charge(anns ? "ann" : "bob", seconds, now);
    if (i >= 200) (anns ? ann : bob) += seconds;
  }
  EXPECT_NEAR(ann / bob, 1, 0.1);
}

TEST(FairShare, OutlivesTheCoordinator) {
  FairShare share;
  share.Charge("ann", 123456.75, kStart);
  share.Charge("", 10, kStart);
  share.Hold("bob", 3);
  FairShare restarted;
  ASSERT_EQ(restarted.Load(share.Save(kStart + absl::Hours(2))), absl::OkStatus());
  const absl::Time later = kStart + absl::Hours(5);
  EXPECT_NEAR(restarted.Usage("ann", later), share.Usage("ann", later), 1e-6);
  EXPECT_NEAR(restarted.Usage("", later), share.Usage("", later), 1e-9);
  EXPECT_EQ(restarted.Usage("bob", later), 0);  // its jobs hold nothing any more
}

TEST(FairShare, WhatIsDamagedIsRefused) {
  FairShare share;
  share.Charge("ann", 5, kStart);
  const std::string good = FairShare().Save(kStart);
  for (const std::string& bad :
       {std::string(), std::string("fair-share 2 5\n"), good.substr(0, good.size() - 1),
        absl::StrCat(good, "x ann\n"), absl::StrCat(good, "nan ann\n"),
        absl::StrCat(good, "-1 ann\n"), absl::StrCat(good, "7\n")}) {
    EXPECT_TRUE(absl::IsDataLoss(share.Load(bad))) << bad;
  }
  EXPECT_DOUBLE_EQ(share.Usage("ann", kStart), 5);
}

}  // namespace
}  // namespace espalier
