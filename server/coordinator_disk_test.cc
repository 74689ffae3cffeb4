// Jobs and their coordinator on a disk that is full, damages checkpoints, or goes away.
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

using DiskTest = CoordinatorFixture;

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
      {"CutShard", [](const auto& folder) { std::filesystem::resize_file(ShardOf(folder), 40); }},
      {"MissingShard", [](const auto& folder) { std::filesystem::remove(ShardOf(folder)); }},
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
    id_ = Submit(Unrecorded());
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
              Contains(Says(v1::JobMessage::WARNING,
                            AllOf(HasSubstr("is damaged"),
                                  HasSubstr(absl::StrCat("; going back to step ", before))))));
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
              Contains(Says(v1::JobMessage::WARNING,
                            AllOf(HasSubstr("is damaged"), HasSubstr("starting again")))));
}

TEST_F(DiskTest, FullDiskPausesCheckpointsAndTrainingGoesOn) {
  AddWorker({.step = absl::Milliseconds(15)});
  const std::string id = Submit(Submission());
  WaitFor(id, [](const v1::Job& job) { return job.checkpoint_step() >= 10; });
  files_.set_free_bytes(0);
  v1::GetJobReply reply =
      WaitFor(id, [](const v1::Job& job) { return !job.checkpoints_paused().empty(); });
  EXPECT_THAT(reply.job().checkpoints_paused(), HasSubstr("No space left"));
  EXPECT_THAT(coordinator_->metrics().Expose(),
              HasSubstr("\nespalier_jobs_checkpoints_paused 1\n"));
  files_.set_free_bytes(int64_t{1} << 40);
  reply = WaitFor(id, [](const v1::Job& job) { return job.checkpoints_paused().empty(); });
  EXPECT_GT(reply.job().checkpoint_step(), 10);
  reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().attempts(), 1);
  ExpectWholeCurve(reply);
  EXPECT_THAT(reply.messages(), ::testing::Contains(Says(v1::JobMessage::WARNING,
                                                         HasSubstr("checkpoints are paused")))
                                    .Times(1));
  EXPECT_THAT(
      reply.messages(),
      ::testing::Contains(Says(v1::JobMessage::INFO, HasSubstr("there is room again"))).Times(1));
  EXPECT_THAT(coordinator_->metrics().Expose(),
              HasSubstr("\nespalier_jobs_checkpoints_paused 0\n"));
}

TEST_F(DiskTest, FullDiskAtTheEndIsWaitedFor) {
  AddWorker();
  files_.set_free_bytes(0);
  const std::string id = Submit(Submission());
  v1::GetJobReply reply =
      WaitFor(id, [](const v1::Job& job) { return job.steps_done() == kSteps; });
  absl::SleepFor(absl::Milliseconds(300));
  reply = Get(id);
  EXPECT_EQ(reply.job().state(), v1::RUNNING) << reply.job().error();
  EXPECT_EQ(reply.job().checkpoint_step(), 0) << "a checkpoint without its manifest is none";
  files_.set_free_bytes(int64_t{1} << 40);
  reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().attempts(), 1);
  ExpectWholeCurve(reply);
  EXPECT_EQ(workers_[0]->runs(), 2) << "no step is repeated";
}

TEST_F(DiskTest, FullDiskDuringExportIsWaitedFor) {
  AddWorker();
  files_.Hold("model.safetensors");
  const std::string id = Submit(Submission());
  ASSERT_TRUE(Eventually([&] { return files_.held() == 1; }));
  files_.set_free_bytes(0);
  files_.Release();
  ASSERT_TRUE(Eventually([&] {
    const v1::GetJobReply reply = Get(id);
    return std::any_of(reply.messages().begin(), reply.messages().end(), [](const auto& message) {
      return message.level() == v1::JobMessage::WARNING &&
             message.text().find("waits for room") != std::string::npos;
    });
  }));
  files_.set_free_bytes(int64_t{1} << 40);
  const v1::GetJobReply reply = WaitForEnd(id);
  ASSERT_EQ(reply.job().state(), v1::SUCCEEDED) << reply.job().error();
  EXPECT_EQ(reply.job().attempts(), 1);
}

TEST_F(DiskTest, ADataFolderThatIsGoneEndsReadiness) {
  EXPECT_EQ(coordinator_->DataFolderStatus(), absl::OkStatus());
  std::filesystem::remove_all(data_dir_ + "-away");
  std::filesystem::rename(data_dir_, data_dir_ + "-away");
  EXPECT_TRUE(Eventually([&] { return !coordinator_->DataFolderStatus().ok(); }));
  grpc::ClientContext context;
  v1::SubmitReply reply;
  EXPECT_EQ(training_->Submit(&context, Submission(), &reply).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  std::filesystem::rename(data_dir_ + "-away", data_dir_);
  EXPECT_TRUE(Eventually([&] { return coordinator_->DataFolderStatus().ok(); }));
  Submit(Submission());
}

INSTANTIATE_TEST_SUITE_P(Kinds, DamageTest, ::testing::ValuesIn(Kinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace espalier
