// Measured sizes are exact; others are interpolated and extrapolated.
#include "planner/machine/communication.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "planner/machine/rates.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Collective = v1::CollectiveInstruction;

void AddMessage(v1::CommunicationProfile* profile, double bytes, double send, double receive) {
  auto* message = profile->add_messages();
  message->set_bytes(bytes);
  message->set_send_seconds(send);
  message->set_receive_seconds(receive);
}

void AddCollective(v1::CommunicationProfile* profile, int kind, int ranks, double bytes,
                   double seconds) {
  auto* collective = profile->add_collectives();
  collective->set_kind(kind);
  collective->set_ranks(ranks);
  collective->set_bytes(bytes);
  collective->set_seconds(seconds);
}

CommunicationModel Model(const v1::CommunicationProfile& profile) {
  absl::StatusOr<CommunicationModel> model = CommunicationModel::Create(profile);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

TEST(CommunicationModelTest, MeasuredSizesAreExactAndOthersInterpolated) {
  v1::CommunicationProfile profile;
  AddMessage(&profile, 3000, 4, 40);  // in any order
  AddMessage(&profile, 1000, 2, 10);
  const CommunicationModel model = Model(profile);
  EXPECT_DOUBLE_EQ(model.MessageSeconds(1000)->receive, 10);
  EXPECT_DOUBLE_EQ(model.MessageSeconds(3000)->receive, 40);
  EXPECT_DOUBLE_EQ(model.MessageSeconds(2000)->receive, 25);
  EXPECT_DOUBLE_EQ(model.MessageSeconds(2000)->send, 3);
  EXPECT_DOUBLE_EQ(model.MessageSeconds(5000)->receive, 70);
  EXPECT_DOUBLE_EQ(model.MessageSeconds(4)->receive, 10);
}

TEST(CommunicationModelTest, TimesAreMonotonicInBytes) {
  v1::CommunicationProfile profile;
  AddMessage(&profile, 10, 1, 50);  // disturbed
  AddMessage(&profile, 1000, 1, 20);
  AddMessage(&profile, 3000, 1, 40);
  EXPECT_DOUBLE_EQ(Model(profile).MessageSeconds(10)->receive, 20);
  EXPECT_DOUBLE_EQ(Model(profile).MessageSeconds(2000)->receive, 30);
}

TEST(CommunicationModelTest, ReturnsNothingWithoutMeasurements) {
  v1::CommunicationProfile profile;
  EXPECT_FALSE(Model(profile).MessageSeconds(1000).has_value());
  AddCollective(&profile, Collective::ALL_GATHER, 2, 1000, 1);
  EXPECT_FALSE(Model(profile).CollectiveSeconds(Collective::ALL_REDUCE, 2, 1000).has_value());
  EXPECT_TRUE(Model(profile).CollectiveSeconds(Collective::ALL_GATHER, 2, 1000).has_value());
}

// On a cluster that is a ring over equal links, measurements with 4 ranks predict 16.
TEST(CommunicationModelTest, UnmeasuredGroupSizesUseAFittedRing) {
  v1::Link link;
  link.set_bandwidth(3e9);
  link.set_latency_seconds(7e-5);
  v1::CommunicationProfile profile;
  for (int kind = Collective::ALL_REDUCE; kind <= Collective::BROADCAST; ++kind) {
    for (double bytes : {1e3, 1e5, 1e7}) {
      const auto as = static_cast<Collective::Kind>(kind);
      AddCollective(&profile, kind, 4, bytes, CollectiveSeconds(link, as, 4, bytes));
    }
  }
  const CommunicationModel model = Model(profile);
  for (auto kind : {Collective::ALL_REDUCE, Collective::ALL_GATHER, Collective::REDUCE_SCATTER,
                    Collective::ALL_TO_ALL}) {
    for (int ranks : {2, 3, 16}) {
      const double expected = CollectiveSeconds(link, kind, ranks, 5e5);
      EXPECT_NEAR(*model.CollectiveSeconds(kind, ranks, 5e5), expected, 1e-6 * expected)
          << Collective::Kind_Name(kind) << " of " << ranks;
    }
  }
}

TEST(CommunicationModelTest, RejectsBadProfilesWithThePlace) {
  const auto error = [](const v1::CommunicationProfile& profile) {
    const auto model = CommunicationModel::Create(profile);
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(model.status().message());
  };
  v1::CommunicationProfile profile;
  AddMessage(&profile, 1000, 1, -1);
  EXPECT_THAT(error(profile), AllOf(HasSubstr("messages[0]"), HasSubstr("0 or more")));
  profile.clear_messages();
  AddMessage(&profile, 1000, 1, 1);
  AddMessage(&profile, 1000, 1, 1);
  EXPECT_THAT(error(profile), AllOf(HasSubstr("messages[1]"), HasSubstr("twice")));
  profile.clear_messages();
  AddCollective(&profile, Collective::ALL_REDUCE, 2, 10, std::numeric_limits<double>::infinity());
  EXPECT_THAT(error(profile), AllOf(HasSubstr("collectives[0]"), HasSubstr("finite")));
  profile.clear_collectives();
  AddCollective(&profile, 9, 2, 10, 1);
  EXPECT_THAT(error(profile), HasSubstr("kind is 9; accepted: 1 to 5"));
  profile.clear_collectives();
  AddCollective(&profile, Collective::ALL_REDUCE, 1, 10, 1);
  EXPECT_THAT(error(profile), HasSubstr("ranks is 1; accepted: 2 to"));
}

}  // namespace
}  // namespace espalier
