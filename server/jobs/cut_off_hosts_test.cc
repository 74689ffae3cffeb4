// A job whose workers do not reach each other goes on with others, or with fewer.
#include "server/jobs/cut_off_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier {
namespace {

using ::testing::ElementsAre;

Member On(const std::string& host, int port = 1) {
  Member member;
  member.address = host + ":" + std::to_string(port);
  return member;
}

class CutOffHostsTest : public ::testing::Test {
 protected:
  std::vector<std::string> Left(const std::vector<Member>& members, size_t wanted,
                                size_t least = 1) {
    std::vector<std::string> addresses;
    for (const Member& member : cut_.LeaveOut(members, wanted, least, now_)) {
      addresses.push_back(member.address);
    }
    return addresses;
  }
  void Fail(const Member& a, const Member& b) {
    const std::vector<std::pair<Member, Member>> reports = {{a, b}, {b, a}};  // of one attempt
    cut_.Add(reports, now_);
  }
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  CutOffHosts cut_;
};

TEST_F(CutOffHostsTest, OtherWorkersAreTakenIfThereAreEnough) {
  const std::vector<Member> three = {On("a"), On("b"), On("c")};
  EXPECT_THAT(Left(three, 2), ElementsAre("a:1", "b:1", "c:1"));
  Fail(On("b"), On("a"));
  EXPECT_THAT(Left(three, 2), ElementsAre("a:1", "c:1"));
  // With all of them wanted it is tried once more: the network may work again.
  EXPECT_THAT(Left(three, 3), ElementsAre("a:1", "b:1", "c:1"));
  // "c" reaches neither.
  Fail(On("c"), On("a"));
  Fail(On("c"), On("b"));
  cut_.Remove({On("a"), On("b")});
  EXPECT_THAT(Left(three, 2), ElementsAre("a:1", "b:1"));
}

TEST_F(CutOffHostsTest, APairThatFailsAgainIsParted) {
  const std::vector<Member> two = {On("a"), On("b")};
  Fail(two[0], two[1]);
  EXPECT_THAT(Left(two, 2), ElementsAre("a:1", "b:1"));
  Fail(two[1], two[0]);
  EXPECT_THAT(Left(two, 2), ElementsAre("a:1"));
  // Not below what the job wants at least: it fails with the reasons of its attempts.
  EXPECT_THAT(Left(two, 2, 2), ElementsAre("a:1", "b:1"));
}

TEST_F(CutOffHostsTest, AllWorkersOfAHostShareItsNetwork) {
  const std::vector<Member> four = {On("a", 1), On("a", 2), On("b", 1), On("a", 3)};
  Fail(On("a", 9), On("b", 9));
  EXPECT_THAT(Left(four, 3), ElementsAre("a:1", "a:2", "a:3"));
  Fail(On("c", 1), On("c", 2));  // no network between them
  EXPECT_THAT(Left({On("c", 1), On("c", 2)}, 1), ElementsAre("c:1", "c:2"));
}

TEST_F(CutOffHostsTest, WorkersThatHaveMetAndOldFailuresAreForgotten) {
  const std::vector<Member> three = {On("a"), On("b"), On("c")};
  Fail(On("a"), On("b"));
  cut_.Remove(three);
  EXPECT_THAT(Left(three, 1), ElementsAre("a:1", "b:1", "c:1"));
  Fail(On("a"), On("b"));
  now_ += 2 * CutOffHosts::kMemory;
  EXPECT_THAT(Left(three, 1), ElementsAre("a:1", "b:1", "c:1"));
  Fail(On("a"), On("b"));  // for the first time again
  EXPECT_THAT(Left({On("a"), On("b")}, 2), ElementsAre("a:1", "b:1"));
}

}  // namespace
}  // namespace espalier
