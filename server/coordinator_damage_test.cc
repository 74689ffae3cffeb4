// Jobs whose checkpoints were damaged on disk while the coordinator was down.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>

#include "server/coordinator_fixture.h"
#include "server/metrics/metrics.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

std::filesystem::path ShardOf(const std::filesystem::path& checkpoint) {
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    if (entry.path().extension() == ".safetensors") return entry.path();
  }
  ADD_FAILURE() << checkpoint << " has no shard";
  return {};
}

void FlipAByte(const std::filesystem::path& file) {
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(file) - 4);
  bytes.seekg(middle);
  const char flipped = static_cast<char>(bytes.get() ^ 0xff);
  bytes.seekp(middle);
  bytes.put(flipped);
}

struct Damage {
  std::string name;
  // Gets the folder of a checkpoint.
  std::function<void(const std::filesystem::path&)> apply;
};

std::vector<Damage> Kinds() {
  return {
      {"FlippedByte", [](const auto& folder) { FlipAByte(ShardOf(folder)); }},
      {"CutShard",
       [](const auto& folder) { std::filesystem::resize_file(ShardOf(folder), 40); }},
      {"MissingShard",
       [](const auto& folder) { std::filesystem::remove(ShardOf(folder)); }},
      {"MissingManifest",
       [](const auto& folder) { std::filesystem::remove(folder / "manifest.json"); }},
      {"JunkManifest",
       [](const auto& folder) { std::ofstream(folder / "manifest.json") << "{garbage"; }},
      {"MissingFolder", [](const auto& folder) { std::filesystem::remove_all(folder); }}};
}

class DamageTest : public CoordinatorFixture, public ::testing::WithParamInterface<Damage> {
 protected:
  // Stops the coordinator when a job has two checkpoints. Returns their folders, the older first.
  std::vector<std::filesystem::path> StopWithTwoCheckpoints() {
    for (int i = 0; i < 2; ++i) AddWorker({.step = absl::Milliseconds(15)});
    id_ = Submit(Submission());
    WaitFor(id_, [](const v1::Job& job) { return job.checkpoint_step() >= 20; });
    address_ = coordinator_->grpc_address();
    coordinator_.reset();
    std::vector<std::filesystem::path> complete;
    for (const auto& entry :
         std::filesystem::directory_iterator(CheckpointsOf(id_) + "/attempt-1")) {
      if (std::filesystem::exists(entry.path() / "manifest.json")) complete.push_back(entry.path());
    }
    std::sort(complete.begin(), complete.end());
    EXPECT_EQ(complete.size(), 2u);
    return complete;
  }
  // Starts it again and expects the whole curve.
  v1::GetJobReply ExpectSuccess() {
    StartCoordinator(address_);
    v1::GetJobReply reply = WaitForEnd(id_);
    EXPECT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
    ExpectWholeCurve(reply);
    return reply;
  }
  std::string id_, address_;
};

TEST_P(DamageTest, TheCheckpointBeforeIsUsed) {
  const std::vector<std::filesystem::path> checkpoints = StopWithTwoCheckpoints();
  GetParam().apply(checkpoints[1]);
  const v1::GetJobReply reply = ExpectSuccess();
  const int64_t before = std::stoll(checkpoints[0].filename().string().substr(5));  // "step-20"
  EXPECT_THAT(reply.messages(),
              Contains(AllOf(HasSubstr("is damaged"),
                             HasSubstr(absl::StrCat("; going back to step ", before)))));
  EXPECT_TRUE(std::any_of(workers_.begin(), workers_.end(), [&](const auto& worker) {
    return worker->first_step_of_last_run() == before;
  }));
  EXPECT_THAT(coordinator_->metrics().Expose(),
              HasSubstr("\nespalier_checkpoints_damaged_total 1\n"));
}

TEST_P(DamageTest, WithoutASoundOneTheJobStartsAgain) {
  for (const std::filesystem::path& checkpoint : StopWithTwoCheckpoints()) {
    GetParam().apply(checkpoint);
  }
  EXPECT_THAT(ExpectSuccess().messages(),
              Contains(AllOf(HasSubstr("is damaged"), HasSubstr("starting again"))));
}

INSTANTIATE_TEST_SUITE_P(Kinds, DamageTest, ::testing::ValuesIn(Kinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace espalier
