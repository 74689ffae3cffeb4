// Ends and time limits of communication by NCCL, with a stand-in for NCCL and the GPU: their waits
// have no end of their own.
#include "worker/collective/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "worker/collective/in_process_communicator.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// What waits until its communicator is aborted.
enum class Waits { kNothing, kJoining, kCall, kGpu };

struct State {
  Waits waits = Waits::kNothing;
  absl::Notification began, aborted;
};

class FakeCommunicator : public CudaCommunicator {
 public:
  explicit FakeCommunicator(State* state) : state_(*state) {}

  KernelStatus Send(const void*, int64_t, int) override { return Wait(); }
  KernelStatus Receive(void*, int64_t, int) override { return Wait(); }
  KernelStatus AllReduceSum(DType, const void*, void*, int64_t) override { return Wait(); }
  KernelStatus AllGather(const void*, void*, int64_t) override { return Wait(); }
  KernelStatus ReduceScatterSum(DType, const void*, void*, int64_t) override { return Wait(); }
  KernelStatus AllToAll(const void*, void*, int64_t) override { return Wait(); }
  KernelStatus Broadcast(void*, int64_t) override { return Wait(); }
  void Abort() override { state_.aborted.Notify(); }
  KernelStatus AsyncError() override { return KernelStatus::Ok(); }

 private:
  KernelStatus Wait() {
    if (state_.waits != Waits::kCall) return KernelStatus::Ok();
    state_.began.Notify();
    state_.aborted.WaitForNotification();
    return KernelStatus::Error("aborted");
  }

  State& state_;
};

class FakePlugin : public CudaPlugin {
 public:
  explicit FakePlugin(State* state) : state_(*state) {}

  KernelStatus NewCommunicatorId(std::string* id) override {
    *id = "id";
    return Ok();
  }
  std::unique_ptr<CudaCommunicator> CreateCommunicator(int, const std::string&, int, int,
                                                       const std::function<bool()>& go_on,
                                                       std::string* error) override {
    if (state_.waits == Waits::kJoining) {
      state_.began.Notify();
      while (go_on()) absl::SleepFor(absl::Milliseconds(1));
      *error = "not all have joined";
      return nullptr;
    }
    return std::make_unique<FakeCommunicator>(&state_);
  }

  // Not called.
  std::vector<CudaDeviceInfo> Devices() override { return {}; }
  KernelStatus MemoryBytes(int, int64_t*, int64_t*) override { return Ok(); }
  KernelStatus Allocate(int, int64_t, void**) override { return Ok(); }
  void Free(int, void*) override {}
  KernelStatus AllocateHost(int, int64_t, void**) override { return Ok(); }
  void FreeHost(int, void*) override {}
  KernelStatus CopyToDevice(int, void*, const void*, int64_t) override { return Ok(); }
  KernelStatus CopyToHost(int, void*, const void*, int64_t) override { return Ok(); }
  KernelStatus BeginCopyToDevice(int, void*, const void*, int64_t, uint64_t*) override {
    return Ok();
  }
  KernelStatus BeginCopyToHost(int, void*, const void*, int64_t, uint64_t*) override {
    return Ok();
  }
  KernelStatus AwaitCopy(int, uint64_t) override { return Ok(); }
  KernelStatus CopyBoxOnDevice(int, const BoxCopy&) override { return Ok(); }
  KernelStatus Fill(int, void*, DType, int64_t, double) override { return Ok(); }
  KernelStatus BeginCapture(int) override { return Ok(); }
  KernelStatus EndCapture(int, uint64_t*) override { return Ok(); }
  KernelStatus LaunchGraph(int, uint64_t) override { return Ok(); }
  void DestroyGraph(int, uint64_t) override {}
  void* Stream(int) override { return nullptr; }
  KernelStatus Synchronize(int) override { return Ok(); }
  void RegisterKernels(KernelRegistry*) override {}
  KernelStatus SetCurrent(int) override { return Ok(); }

 private:
  static KernelStatus Ok() { return KernelStatus::Ok(); }

  State& state_;
};

class FakeDevice : public Device {
 public:
  explicit FakeDevice(State* state) : state_(*state) {}

  absl::Status Synchronize() override {
    if (state_.waits != Waits::kGpu) return absl::OkStatus();
    state_.began.Notify();
    state_.aborted.WaitForNotification();
    return absl::InternalError("the GPU's work has ended with an error");
  }

  // Not called.
  const v1::Device& description() const override { return description_; }
  bool is_host() const override { return false; }
  const KernelRegistry& kernels() const override { return kernels_; }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t) override { return Not(); }
  absl::Status CopyToDevice(void*, const void*, int64_t) override { return Not(); }
  absl::Status CopyToHost(void*, const void*, int64_t) override { return Not(); }
  absl::Status CopyBox(const BoxCopy&) override { return Not(); }
  absl::StatusOr<std::unique_ptr<HostMemory>> AllocateHost(int64_t) override { return Not(); }
  absl::StatusOr<uint64_t> BeginCopyToHost(void*, const void*, int64_t) override { return Not(); }
  absl::StatusOr<uint64_t> BeginCopyToDevice(void*, const void*, int64_t) override { return Not(); }
  absl::Status AwaitCopy(uint64_t) override { return Not(); }
  absl::Status Fill(void*, DType, int64_t, double) override { return Not(); }

 protected:
  void Free(void*, int64_t) override {}

 private:
  static absl::Status Not() { return absl::UnimplementedError("a stand-in"); }

  State& state_;
  v1::Device description_;
  KernelRegistry kernels_;
};

class NcclTest : public ::testing::TestWithParam<Waits> {
 protected:
  // Rank 1 of two, whose peer has published the id.
  std::unique_ptr<Communicator> Connect(absl::Duration timeout) {
    state_.waits = GetParam();
    std::unique_ptr<RendezvousStore> store = NewInProcessStore();
    EXPECT_TRUE(store->Set("nccl/0,1", "id").ok());
    return NewNcclCommunicator(&plugin_, 0, device_, 1, 2, std::move(store), timeout, nullptr);
  }
  static absl::Status SendAndFlush(Communicator& communicator) {
    absl::Status sent = communicator.Send("x", 1, 0, 7);
    return sent.ok() ? communicator.Flush() : sent;
  }

  State state_;
  FakePlugin plugin_{&state_};
  FakeDevice device_{&state_};
};

INSTANTIATE_TEST_SUITE_P(, NcclTest, ::testing::Values(Waits::kJoining, Waits::kCall, Waits::kGpu),
                         [](const auto& info) {
                           return info.param == Waits::kJoining ? "Joining"
                                  : info.param == Waits::kCall  ? "Call"
                                                                : "Gpu";
                         });

TEST_P(NcclTest, AbortEndsEveryWaitAndSaysWhy) {
  const auto communicator = Connect(absl::Minutes(10));
  absl::Status status;
  std::thread rank([&] { status = SendAndFlush(*communicator); });
  state_.began.WaitForNotification();
  communicator->Abort("the job was cancelled");
  rank.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(status.message(), "the job was cancelled");
  EXPECT_TRUE(absl::IsCancelled(SendAndFlush(*communicator)));
}

TEST_P(NcclTest, NothingWaitsLongerThanTheTimeout) {
  const auto communicator = Connect(absl::Milliseconds(100));
  const absl::Time begin = absl::Now();
  const absl::Status status = SendAndFlush(*communicator);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(GetParam() == Waits::kJoining ? "NCCL among ranks 0,1" : "within 100ms"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

}  // namespace
}  // namespace espalier
