#include "server/jobs/select_workers.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>

namespace espalier {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Chosen(const std::vector<std::pair<std::string, int64_t>>& idle,
                                const WorkerMemory& enough, size_t most = 9) {
  std::vector<Member> members;
  for (const auto& [name, bytes] : idle) {
    members.emplace_back().name = name;
    members.back().device.set_memory_bytes(bytes);
  }
  std::vector<std::string> names;
  for (const Member& member : SelectLargestWorkers(members, enough, most))
    names.push_back(member.name);
  return names;
}

TEST(SelectWorkers, UsesReplacementWhateverItsName) {
  // Two workers sufficed before: 80 and 16.
  EXPECT_THAT(Chosen({{"b", 16}, {"c", 16}, {"d", 80}}, {2, 96, 16, 80}, 2), ElementsAre("b", "d"));
}

TEST(SelectWorkers, KeepsOrderOfMembers) {
  EXPECT_THAT(Chosen({{"a", 16}, {"b", 80}, {"c", 40}}, {2, 96, 16, 80}),
              ElementsAre("a", "b", "c"));
}

TEST(SelectWorkers, LeavesOutSmallWorkersIfOthersSuffice) {
  const WorkerMemory enough = {2, 160, 80, 80};
  EXPECT_THAT(Chosen({{"a", 80}, {"b", 16}, {"c", 96}}, enough), ElementsAre("a", "c"));
  EXPECT_THAT(Chosen({{"a", 80}, {"b", 16}}, enough), ElementsAre("a", "b")) << "perhaps with it";
}

TEST(SelectWorkers, WhereNothingIsKnownAllAreTaken) {
  EXPECT_THAT(Chosen({{"a", 0}, {"b", 0}}, WorkerMemory()), ElementsAre("a", "b"));
}

}  // namespace
}  // namespace espalier
