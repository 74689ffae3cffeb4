#include "server/jobs/shard_places.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/shard_key.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

// The worker on a host, with a Shards service on port 9.
Member On(const std::string& host, int port = 1, bool copies = true) {
  Member member;
  member.address = absl::StrCat(host, ":", port);
  member.call_key = absl::StrCat("key of ", host);
  if (copies) member.shards_address = absl::StrCat(host, ":9");
  member.shards_certificate = absl::StrCat("certificate of ", host);
  return member;
}

std::vector<std::string> KeptOn(const std::vector<ShardPlaces>& places) {
  std::vector<std::string> kept;
  for (const ShardPlaces& rank : places) {
    kept.push_back(rank.keep_on.has_value() ? rank.keep_on->address() : "");
  }
  return kept;
}

std::vector<std::string> Peers(const ShardPlaces& places) {
  std::vector<std::string> peers;
  for (const v1::ShardPeer& peer : places.peers) peers.push_back(peer.address());
  return peers;
}

TEST(ShardPlacesTest, EachHostKeepsTheShardsOfOneOther) {
  const std::vector<Member> ranks = {On("a", 1), On("a", 2), On("b", 1), On("b", 2), On("c")};
  const auto places = ChooseShardPlaces(ranks, ranks, "job-1");
  EXPECT_THAT(KeptOn(places), ElementsAre("b:9", "b:9", "c:9", "c:9", "a:9"));
  EXPECT_THAT(Peers(places[0]), ElementsAre("b:9", "c:9"));
  EXPECT_THAT(Peers(places[4]), ElementsAre("a:9", "b:9"));
  EXPECT_EQ(places[0].keep_on->certificate(), "certificate of b");
}

TEST(ShardPlacesTest, ACallerLearnsAKeyOfThatJobOnly) {
  const std::vector<Member> ranks = {On("a"), On("b")};
  const auto one = ChooseShardPlaces(ranks, {}, "job-1"),
             two = ChooseShardPlaces(ranks, {}, "job-2");
  EXPECT_EQ(one[0].keep_on->key(), ShardKey("key of b", "job-1"));
  EXPECT_NE(one[0].keep_on->key(), two[0].keep_on->key());
  EXPECT_NE(one[0].keep_on->key(), one[1].keep_on->key());
  EXPECT_EQ(one[0].keep_on->key().find("key of b"), std::string::npos);
}

TEST(ShardPlacesTest, AnIdleHostHelpsWhereTheAttemptHasOneOnly) {
  const std::vector<Member> ranks = {On("a", 1), On("a", 2)};
  EXPECT_THAT(KeptOn(ChooseShardPlaces(ranks, ranks, "j")), ElementsAre("", ""));
  const std::vector<Member> living = {On("a", 1), On("a", 2), On("z", 1, false), On("z", 2)};
  EXPECT_THAT(KeptOn(ChooseShardPlaces(ranks, living, "j")), ElementsAre("z:9", "z:9"));
}

TEST(ShardPlacesTest, AWorkerWithoutTheServiceIsNoPlace) {
  const std::vector<Member> ranks = {On("a"), On("b", 1, false)};
  EXPECT_THAT(KeptOn(ChooseShardPlaces(ranks, ranks, "j")), ElementsAre("", "a:9"));
}

TEST(ShardPlacesTest, ManyHostsAreNotAllAsked) {
  std::vector<Member> ranks;
  for (int i = 0; i < 200; ++i) ranks.push_back(On(absl::StrCat("h", i)));
  EXPECT_EQ(ChooseShardPlaces(ranks, ranks, "j")[150].peers.size(), 64u);
}

}  // namespace
}  // namespace espalier
