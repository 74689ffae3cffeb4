#include "worker/trainer/checkpoint_observer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/testing/faulty_file_system.h"
#include "storage/checkpoint.h"
#include "storage/folder_checkpoint_store.h"
#include "worker/executor/executor_fixture.h"
#include "worker/trainer/trainer.h"

namespace espalier {
namespace {

// A program of two parameters; writes the number of the next step into them before it runs.
class CheckpointObserverTest : public ExecutorTest, public StepObserver {
 protected:
  CheckpointObserverTest() {
    ProgramWriter w;
    for (const char* name : {"p", "q"}) w.Buffer(name, {4}, v1::PARAMETER_SHARD);
    const int sum = w.Buffer("s", {});
    w.Compute("sum_squares", {0}, {sum});
    w.Report(sum, "x");
    SetProgram(w.program);
  }
  void SetProgram(const v1::Program& program) {
    auto made = Make(program);
    EXPECT_TRUE(made.ok()) << made.status();
    executor_ = *std::move(made);
  }
  absl::string_view name() const override { return "values"; }
  absl::Status OnStepBegin(TrainingRun&, int64_t step, bool*) override {
    const std::vector<float> values(4, static_cast<float>(step + 1));
    for (int i : {0, 1}) EXPECT_TRUE(executor_->WriteBuffer(i, values.data(), 16).ok());
    return absl::OkStatus();
  }
  absl::Status OnStepEnd(TrainingRun&, int64_t step, StepReports&) override {
    if (during_step_) during_step_(step);
    return step == fail_at_ ? absl::AbortedError("planted") : absl::OkStatus();
  }

  std::unique_ptr<ShardWriter> Writer(int64_t most_host_bytes = -1) {
    return std::make_unique<ShardWriter>(
        ShardWriterOptions{&store_, executor_.get(), device_.get(), most_host_bytes});
  }
  absl::Status Run(ShardWriter& writer, int64_t begin, int64_t end, int64_t every) {
    return Run(begin, end, CheckpointOptions{&writer, Root(), every, 7});
  }
  absl::Status Run(int64_t begin, int64_t end, const CheckpointOptions& how) {
    CheckpointObserver checkpoint(how);
    TrainerOptions options;
    options.executor = executor_.get();
    options.begin = begin;
    options.end = end;
    options.observers = {this, &checkpoint};
    options.emit = [this](const v1::RunEvent& event) {
      if (event.has_shard()) shards_.push_back(event.shard());
      order_.push_back(event.has_shard() ? absl::StrCat("shard ", event.shard().steps_done())
                                         : absl::StrCat("step ", event.step().step()));
      return absl::OkStatus();
    };
    return Trainer(options).Run();
  }
  static std::string Root() {
    return testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  // Checks that both tensors of the shard have the value that they had after so many steps.
  void ExpectValues(const v1::CheckpointShard& shard) {
    Manifest manifest;
    manifest.job_id = "j";
    manifest.steps_done = shard.steps_done();
    manifest.files = {{shard.file(), shard.sha256(), shard.bytes()}};
    const v1::CheckpointShard::Unchanged& unchanged = shard.unchanged();
    if (shard.has_unchanged()) {
      manifest.files.push_back({unchanged.file(), unchanged.sha256(), unchanged.bytes(), true});
    }
    ASSERT_TRUE(WriteManifest(store_, shard.directory(), manifest).ok());
    auto reader = CheckpointReader::Open(store_, shard.directory());
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (const char* name : {"p", "q"}) {
      std::vector<float> values(4);
      const TensorSpec spec = TensorSpec::Whole({DType::kF32, {4}});
      ASSERT_EQ((*reader)->Read(name, spec, values.data()), absl::OkStatus());
      EXPECT_EQ(values, std::vector<float>(4, static_cast<float>(shard.steps_done()))) << name;
    }
    EXPECT_EQ((*reader)->Verify(), absl::OkStatus());
  }
  bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 2000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(5));
    return condition();
  }

  FaultyFileSystem files_{NewPosixFileSystem()};
  FolderCheckpointStore store_{files_, testing::TempDir()};
  std::unique_ptr<Executor> executor_;
  std::function<void(int64_t step)> during_step_;
  int64_t fail_at_ = -1;
  std::vector<v1::CheckpointShard> shards_;
  std::vector<std::string> order_;
};

TEST_F(CheckpointObserverTest, StepsGoOnWhileAShardIsWrittenWithTheValuesOfItsStep) {
  const std::unique_ptr<ShardWriter> writer = Writer();
  files_.Hold("step-2-attempt-7");
  during_step_ = [&](int64_t step) {
    if (step != 3) return;
    EXPECT_EQ(order_, (std::vector<std::string>{"step 0", "step 1", "step 2"}));
    EXPECT_TRUE(Eventually([&] { return files_.held() == 1; }));
    absl::SleepFor(absl::Milliseconds(50));
    files_.Release();
  };
  ASSERT_EQ(Run(*writer, 0, 8, 2), absl::OkStatus());
  ASSERT_EQ(shards_.size(), 4u) << "none is left out";
  for (size_t i = 0; i < shards_.size(); ++i) {
    EXPECT_EQ(shards_[i].steps_done(), static_cast<int64_t>(2 * i + 2));
    ExpectValues(shards_[i]);
    EXPECT_GT(shards_[i].stall_seconds(), 0);
    EXPECT_GT(shards_[i].writer_cpu_seconds(), 0);
    EXPECT_LE(shards_[i].writer_cpu_seconds(), shards_[i].write_seconds());
  }
  EXPECT_LT(shards_[0].stall_seconds(), shards_[0].write_seconds());
}

TEST_F(CheckpointObserverTest, TheEndOfARunWaitsForItsShard) {
  const std::unique_ptr<ShardWriter> writer = Writer();
  files_.Hold("step-3-attempt-7");
  std::atomic<bool> over{false};
  std::thread disk([&] {
    EXPECT_TRUE(Eventually([&] { return files_.held() == 1; }));
    absl::SleepFor(absl::Milliseconds(50));
    EXPECT_FALSE(over);
    files_.Release();
  });
  EXPECT_EQ(Run(*writer, 0, 3, 0), absl::OkStatus());
  over = true;
  disk.join();
  EXPECT_EQ(order_, (std::vector<std::string>{"step 0", "step 1", "step 2", "shard 3"}));
  EXPECT_GE(shards_[0].stall_seconds(), 0.04) << "a wait is a cost";
}

TEST_F(CheckpointObserverTest, ARunThatFailsDropsWhatIsBeingWritten) {
  const std::unique_ptr<ShardWriter> writer = Writer();
  files_.Hold("step-2-attempt-7");
  during_step_ = [&](int64_t step) {
    if (step == 2) files_.Release();
  };
  fail_at_ = 2;
  EXPECT_EQ(Run(*writer, 0, 4, 2), absl::AbortedError("planted"));
  EXPECT_TRUE(shards_.empty());
  fail_at_ = -1;
  EXPECT_EQ(Run(*writer, 2, 4, 2), absl::OkStatus()) << "the next one is written";
  ASSERT_EQ(shards_.size(), 1u);
  ExpectValues(shards_[0]);
}

TEST_F(CheckpointObserverTest, WithoutHostMemoryForACopyTheStepsWait) {
  for (const int64_t most : {0, 64}) {  // nothing, or one of the two tensors
    shards_.clear();
    const std::unique_ptr<ShardWriter> writer = Writer(most);
    ASSERT_EQ(Run(*writer, 10 * most, 10 * most + 6, 2), absl::OkStatus());
    ASSERT_EQ(shards_.size(), 3u);
    for (const v1::CheckpointShard& shard : shards_) ExpectValues(shard);
  }
}

TEST_F(CheckpointObserverTest, AFailedWriteEndsTheRunWithTheStep) {
  // A file in place of the folder.
  ASSERT_TRUE(store_.PutIfAbsent(absl::StrCat(Root(), "/step-3-attempt-7"), "x").ok());
  const std::unique_ptr<ShardWriter> writer = Writer();
  const absl::Status status = Run(*writer, 0, 3, 0);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(std::string(status.message()).find("checkpoint after step 3"), std::string::npos)
      << status;
}

// Runs of one job: validations are between them.
class GoingOnTest : public CheckpointObserverTest {
 protected:
  CheckpointOptions GoesOn(ShardWriter& writer) {
    CheckpointOptions options{&writer, Root(), /*every_steps=*/2, 7};
    options.goes_on = true;
    return options;
  }
};

TEST_F(GoingOnTest, AShardIsWrittenWhileRunsFollowEachOtherAndIsReportedOnce) {
  const std::unique_ptr<ShardWriter> writer = Writer();
  files_.Hold("step-2-attempt-7");  // a slow store
  ASSERT_EQ(Run(0, 2, GoesOn(*writer)), absl::OkStatus());
  EXPECT_EQ(order_, (std::vector<std::string>{"step 0", "step 1"})) << "the run has not waited";
  EXPECT_TRUE(Eventually([&] { return files_.held() == 1; }));
  ASSERT_EQ(Run(2, 3, GoesOn(*writer)), absl::OkStatus());
  EXPECT_EQ(order_.back(), "step 2");
  files_.Release();
  EXPECT_TRUE(Eventually([&] { return writer->finished(); }));
  ASSERT_EQ(Run(*writer, 3, 4, 0), absl::OkStatus());
  EXPECT_EQ(order_, (std::vector<std::string>{"step 0", "step 1", "step 2", "shard 2", "step 3",
                                              "shard 4"}));
  for (const v1::CheckpointShard& shard : shards_) ExpectValues(shard);
}

TEST_F(GoingOnTest, TheLastRunWaitsForTheShardOfAnEarlierOne) {
  const std::unique_ptr<ShardWriter> writer = Writer();
  files_.Hold("step-2-attempt-7");
  ASSERT_EQ(Run(0, 2, GoesOn(*writer)), absl::OkStatus());
  std::thread disk([&] {
    absl::SleepFor(absl::Milliseconds(50));
    files_.Release();
  });
  // No step is left: what only collects the shard.
  EXPECT_EQ(Run(*writer, 2, 2, 0), absl::OkStatus());
  disk.join();
  EXPECT_EQ(order_, (std::vector<std::string>{"step 0", "step 1", "shard 2"}));
  ExpectValues(shards_[0]);
}

// The coordinator wants the checkpoint of the best validation, which happens to be on its way.
TEST_F(GoingOnTest, AShardThatIsBegunIsNotWrittenAgain) {
  const std::unique_ptr<ShardWriter> writer = Writer();
  ASSERT_EQ(Run(0, 2, GoesOn(*writer)), absl::OkStatus());
  CheckpointOptions now = GoesOn(*writer);
  now.at_begin = true;
  now.goes_on = false;
  EXPECT_EQ(Run(2, 2, now), absl::OkStatus());
  EXPECT_EQ(order_, (std::vector<std::string>{"step 0", "step 1", "shard 2"}));
  EXPECT_EQ(Run(2, 2, now), absl::OkStatus());
  EXPECT_EQ(order_.size(), 4u) << "asked for again, it is written again";
}

TEST_F(GoingOnTest, ARunThatFailsDropsTheShardOfAnEarlierOne) {
  const std::unique_ptr<ShardWriter> writer = Writer();
  files_.Hold("step-2-attempt-7");
  ASSERT_EQ(Run(0, 2, GoesOn(*writer)), absl::OkStatus());
  fail_at_ = 2;
  during_step_ = [&](int64_t) { files_.Release(); };
  EXPECT_EQ(Run(2, 4, GoesOn(*writer)), absl::AbortedError("planted"));
  EXPECT_FALSE(writer->busy());
  EXPECT_TRUE(shards_.empty());
}

// Steps add to "p" and "q"; the other parameter is frozen.
class FrozenParameterTest : public CheckpointObserverTest {
 protected:
  static constexpr int64_t kFrozen = 64 << 10;  // elements

  FrozenParameterTest() {
    std::filesystem::remove_all(JoinPath(testing::TempDir(), Root()));
    ProgramWriter w;
    for (const char* name : {"p", "q"}) w.Buffer(name, {4}, v1::PARAMETER_SHARD);
    const int zero = w.Buffer("zero", {4});
    w.Add("zero")->mutable_fill()->set_buffer(zero);
    for (const int i : {0, 1}) {
      v1::CopyInstruction* add = w.Add("add")->mutable_copy();
      add->set_source(zero);
      add->set_destination(i);
      add->set_accumulate(true);
      add->add_source_start(0);
      add->add_destination_start(0);
      add->add_size(4);
    }
    const int frozen = w.Buffer("frozen", {kFrozen}, v1::PARAMETER_SHARD);
    w.program.mutable_buffers(frozen)->mutable_initializer()->set_kind(v1::Initializer::NORMAL);
    w.program.mutable_buffers(frozen)->mutable_initializer()->set_scale(1);
    const int sum = w.Buffer("s", {});
    w.Compute("sum_squares", {frozen}, {sum});
    w.Report(sum, "x");
    SetProgram(w.program);
    EXPECT_EQ(executor_->ReadBuffer(frozen, values_.data(), 4 * kFrozen), absl::OkStatus());
  }

  void ExpectFrozenValues(const v1::CheckpointShard& shard) {
    auto reader = CheckpointReader::Open(store_, shard.directory());
    ASSERT_TRUE(reader.ok()) << reader.status();
    std::vector<float> values(kFrozen);
    const TensorSpec spec = TensorSpec::Whole({DType::kF32, {kFrozen}});
    ASSERT_EQ((*reader)->Read("frozen", spec, values.data()), absl::OkStatus());
    EXPECT_EQ(values, values_);
    EXPECT_EQ((*reader)->VerifyAll(), absl::OkStatus());
  }
  std::string PathOfShared() const {
    return JoinPath(JoinPath(testing::TempDir(), Root()), "unchanged-rank-0.safetensors");
  }

  std::vector<float> values_ = std::vector<float>(kFrozen);
};

// Memory that the host does not access, as of a GPU.
class OtherMemory : public Device {
 public:
  explicit OtherMemory(Device* device) : device_(*device) {}
  const v1::Device& description() const override { return device_.description(); }
  bool is_host() const override { return false; }
  const KernelRegistry& kernels() const override { return device_.kernels(); }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override {
    return device_.Allocate(bytes);
  }
  absl::Status CopyToDevice(void* destination, const void* host, int64_t bytes) override {
    return device_.CopyToDevice(destination, host, bytes);
  }
  absl::Status CopyToHost(void* host, const void* source, int64_t bytes) override {
    return device_.CopyToHost(host, source, bytes);
  }
  absl::Status CopyBox(const BoxCopy& copy) override { return device_.CopyBox(copy); }
  absl::StatusOr<std::unique_ptr<HostMemory>> AllocateHost(int64_t bytes) override {
    return device_.AllocateHost(bytes);
  }
  absl::StatusOr<uint64_t> BeginCopyToHost(void* host, const void* source, int64_t bytes) override {
    return device_.BeginCopyToHost(host, source, bytes);
  }
  absl::StatusOr<uint64_t> BeginCopyToDevice(void* destination, const void* host,
                                             int64_t bytes) override {
    return device_.BeginCopyToDevice(destination, host, bytes);
  }
  absl::Status AwaitCopy(uint64_t ticket) override { return device_.AwaitCopy(ticket); }
  absl::Status Fill(void* destination, DType dtype, int64_t count, double value) override {
    return device_.Fill(destination, dtype, count, value);
  }

 protected:
  void Free(void*, int64_t) override {}  // what it allocates is freed by the other one

 private:
  Device& device_;
};

// Copied beforehand, or written while the steps wait.
TEST_F(FrozenParameterTest, IsCopiedFromMemoryThatTheHostDoesNotAccess) {
  OtherMemory device(device_.get());
  const v1::Program program = executor_->program();
  for (const int64_t most : {int64_t{1} << 30, int64_t{1} << 10, int64_t{0}}) {
    ExecutorOptions options;
    options.device = &device;
    auto made = Executor::Create(program, options);
    ASSERT_TRUE(made.ok()) << made.status();
    executor_ = *std::move(made);
    shards_.clear();
    std::filesystem::remove_all(JoinPath(testing::TempDir(), Root()));
    ShardWriter writer({&store_, executor_.get(), &device, most});
    ASSERT_EQ(Run(writer, 0, 4, 2), absl::OkStatus());
    ASSERT_EQ(shards_.size(), 2u);
    for (const v1::CheckpointShard& shard : shards_) {
      ExpectValues(shard);
      ExpectFrozenValues(shard);
    }
  }
  executor_ = nullptr;  // before the device
}

TEST_F(FrozenParameterTest, IsWrittenOnceAndEachCheckpointHasIt) {
  const std::unique_ptr<ShardWriter> writer = Writer(1 << 10);  // the frozen one is not copied
  ASSERT_EQ(Run(*writer, 0, 2, 2), absl::OkStatus());
  const auto written = std::filesystem::last_write_time(PathOfShared());
  ASSERT_EQ(Run(*writer, 2, 6, 2), absl::OkStatus());
  ASSERT_EQ(shards_.size(), 3u);
  for (const v1::CheckpointShard& shard : shards_) {
    EXPECT_EQ(shard.unchanged().file(), "unchanged-rank-0.safetensors");
    EXPECT_GT(shard.unchanged().bytes(), 4 * kFrozen);
    EXPECT_EQ(shard.unchanged().sha256(), shards_[0].unchanged().sha256());
    EXPECT_LT(shard.bytes(), 1000);
    ExpectValues(shard);
    ExpectFrozenValues(shard);
  }
  EXPECT_EQ(std::filesystem::last_write_time(PathOfShared()), written);
}

TEST_F(FrozenParameterTest, IsWrittenWithTheFirstCheckpointThatHasRoom) {
  const std::unique_ptr<ShardWriter> writer = Writer();
  files_.set_free_bytes(kFrozen);
  ASSERT_EQ(Run(*writer, 0, 2, 2), absl::OkStatus());
  ASSERT_EQ(shards_.size(), 1u);
  EXPECT_NE(shards_[0].not_written(), "");
  EXPECT_FALSE(std::filesystem::exists(PathOfShared()));
  files_.set_free_bytes(1 << 30);
  ASSERT_EQ(Run(*writer, 2, 4, 2), absl::OkStatus());
  ExpectValues(shards_[1]);
  ExpectFrozenValues(shards_[1]);
}

TEST_F(FrozenParameterTest, IsWrittenLaterWhereTheFirstCheckpointWasDropped) {
  const std::unique_ptr<ShardWriter> writer = Writer();
  files_.Hold("unchanged-rank-0");
  during_step_ = [&](int64_t step) {
    if (step == 2) files_.Release();
  };
  fail_at_ = 2;
  EXPECT_EQ(Run(*writer, 0, 4, 2), absl::AbortedError("planted"));
  fail_at_ = -1;
  ASSERT_EQ(Run(*writer, 2, 4, 2), absl::OkStatus());
  ASSERT_EQ(shards_.size(), 1u);
  ExpectValues(shards_[0]);
  ExpectFrozenValues(shards_[0]);
}

}  // namespace
}  // namespace espalier
