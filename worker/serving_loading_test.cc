// A loading model does not delay others on its worker. Weights come from a file system that blocks
// reads.
#include <grpcpp/create_channel.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/testing/gated_file_system.h"
#include "worker/serving_fixture.h"
#include "worker/worker_service.h"

namespace espalier {
namespace {

// A CPU device that claims not to be a host, like a GPU, and records the threads that use it.
class Elsewhere : public Device {
 public:
  explicit Elsewhere(const CpuDeviceOptions& options) : cpu_(NewCpuDevice(options)) {}

  std::set<std::thread::id> threads() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return threads_;
  }

  const v1::Device& description() const override { return cpu_->description(); }
  bool is_host() const override { return false; }
  const KernelRegistry& kernels() const override { return Noted().kernels(); }
  absl::Status EnterThread(KernelThreads threads) override { return Noted().EnterThread(threads); }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override {
    return Noted().Allocate(bytes);
  }
  absl::Status CopyToDevice(void* to, const void* host, int64_t bytes) override {
    return Noted().CopyToDevice(to, host, bytes);
  }
  absl::Status CopyToHost(void* host, const void* from, int64_t bytes) override {
    return Noted().CopyToHost(host, from, bytes);
  }
  absl::Status CopyBox(const BoxCopy& copy) override { return Noted().CopyBox(copy); }
  absl::StatusOr<std::unique_ptr<HostMemory>> AllocateHost(int64_t bytes) override {
    return Noted().AllocateHost(bytes);
  }
  absl::StatusOr<uint64_t> BeginCopyToHost(void* host, const void* from, int64_t bytes) override {
    return Noted().BeginCopyToHost(host, from, bytes);
  }
  absl::StatusOr<uint64_t> BeginCopyToDevice(void* to, const void* host, int64_t bytes) override {
    return Noted().BeginCopyToDevice(to, host, bytes);
  }
  absl::Status AwaitCopy(uint64_t ticket) override { return Noted().AwaitCopy(ticket); }
  absl::Status Fill(void* to, DType dtype, int64_t count, double value) override {
    return Noted().Fill(to, dtype, count, value);
  }

 protected:
  void Free(void*, int64_t) override {}  // the CPU device owns the memory

 private:
  Device& Noted() const {
    std::lock_guard<std::mutex> lock(mutex_);
    threads_.insert(std::this_thread::get_id());
    return *cpu_;
  }

  const std::unique_ptr<Device> cpu_;
  mutable std::mutex mutex_;
  mutable std::set<std::thread::id> threads_;
};

// A CPU device whose Free blocks.
class SlowToFree : public Elsewhere {
 public:
  using Elsewhere::Elsewhere;

  bool is_host() const override { return true; }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override {
    absl::StatusOr<std::unique_ptr<DeviceMemory>> block = Elsewhere::Allocate(bytes);
    if (!block.ok()) return block.status();
    void* const data = (*block)->data();
    absl::MutexLock lock(&mutex_);
    blocks_[data] = *std::move(block);
    return std::make_unique<DeviceMemory>(this, data, bytes);
  }

  void Hold(bool held) {
    absl::MutexLock lock(&mutex_);
    held_ = held;
  }
  // Returns false if no memory is freed for a long time.
  bool AwaitFree() const {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&is_waiting_), absl::Seconds(60));
  }

 protected:
  void Free(void* data, int64_t) override {
    absl::MutexLock lock(&mutex_);
    is_waiting_ = true;
    const auto released = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !held_; };
    mutex_.Await(absl::Condition(&released));
    is_waiting_ = false;
    blocks_.erase(data);
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<void*, std::unique_ptr<DeviceMemory>> blocks_ ABSL_GUARDED_BY(mutex_);
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_waiting_ ABSL_GUARDED_BY(mutex_) = false;
};

class ServingLoadingTest : public ServingFixture {
 protected:
  ~ServingLoadingTest() override {
    gate_.Release();
    if (server_ != nullptr) {
      service_->AbortAll("the test is over");
      server_->Shutdown(std::chrono::system_clock::now());
    }
  }

  uint64_t Epoch() const override { return 1; }

  void Start(std::unique_ptr<Device> device) {
    device_ = std::move(device);
    WorkerServiceOptions options;
    options.device = device_.get();
    options.files = &gate_;
    options.storage = [this](const v1::Attempt&, const ShardPlaces&) {
      return JobStorage::InFolder(gate_, testing::TempDir(), testing::TempDir());
    };
    service_ = std::make_unique<WorkerService>(options);
    service_->SetEpoch(Epoch());
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    stub_ = v1::Worker::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  }

  // Loads a model on another thread; blocks after this many reads of its files.
  struct Loading {
    Loading(ServingLoadingTest& test, const Model& model, uint64_t attempt, int reads) {
      test.gate_.Hold(JoinPath(testing::TempDir(), model.request.folder()), reads);
      thread = std::thread([this, &test, &model, attempt] {
        status = test.Load(model, attempt);
        done = true;
      });
      waits = test.gate_.AwaitWaitingRead();
    }

    std::thread thread;
    grpc::Status status;
    std::atomic<bool> done{false};
    bool waits = false;
  };

  // Runs steps of one model while another one's load is blocked, as many as fit the first one's KV
  // cache.
  void ExpectStepsWhileLoading() {
    const Model large = Make("serving/lm", 64, 1), small = Make("serving/lm/ssm0", 32, 2);
    std::vector<std::string> alone[2];
    for (const Model* model : {&large, &small}) {
      const grpc::Status loaded = Load(*model);
      ASSERT_TRUE(loaded.ok()) << loaded.error_message();
      alone[model == &small] = DecodeAll(*model);
    }
    ASSERT_EQ(alone[0].back().size(), kVocabulary * sizeof(float));
    uint64_t attempt = 1;
    // Blocked at the header, at the first weights, and later.
    for (const int reads : {0, 2, 7}) {
      SCOPED_TRACE(reads);
      ++attempt;
      ASSERT_TRUE(Load(large, attempt).ok());
      Loading loading(*this, small, attempt, reads);
      EXPECT_TRUE(loading.waits);
      EXPECT_TRUE(DecodeAll(large, attempt) == alone[0]);
      EXPECT_FALSE(loading.done);
      gate_.Release();
      loading.thread.join();
      EXPECT_TRUE(loading.status.ok()) << loading.status.error_message();
      EXPECT_TRUE(DecodeAll(small, attempt) == alone[1]);
      if (HasFailure()) return;
    }
  }

  GatedFileSystem gate_{NewPosixFileSystem()};
  std::unique_ptr<Device> device_;
  std::unique_ptr<WorkerService> service_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ServingLoadingTest, OthersStepWhileAModelLoadsToHostMemory) {
  Start(NewCpuDevice({1, 1 << 28}));
  ExpectStepsWhileLoading();
}

TEST_F(ServingLoadingTest, OthersStepWhileAModelLoadsToASingleThreadDevice) {
  auto device = std::make_unique<Elsewhere>(CpuDeviceOptions{1, 1 << 28});
  const Elsewhere& elsewhere = *device;
  Start(std::move(device));
  ExpectStepsWhileLoading();
  EXPECT_EQ(elsewhere.threads().size(), 1u);
}

TEST_F(ServingLoadingTest, StoppedLoadReadsNoMoreAndFreesItsMemory) {
  const Model large = Make("serving/lm", 64, 1), small = Make("serving/lm/ssm0", 128, 2);
  Start(NewCpuDevice({1, large.bytes + small.bytes + small.bytes / 2}));
  ASSERT_TRUE(Load(large).ok());
  Steps steps(*this, large);
  for (const int reads : {2, 7}) {
    SCOPED_TRACE(reads);
    const uint64_t attempt = static_cast<uint64_t>(reads);
    Loading loading(*this, small, attempt, reads);
    EXPECT_TRUE(loading.waits);
    grpc::Status stopped;
    std::thread stopper([&] { stopped = Stop(small, attempt); });
    // The worker has received the stop.
    const auto known = [&] {
      return Load(small, attempt).error_message().find("was stopped") != std::string::npos;
    };
    for (int i = 0; i < 2000 && !known(); ++i) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_NE(steps.Next(1), "");
    gate_.Release();
    loading.thread.join();
    stopper.join();
    EXPECT_TRUE(stopped.ok()) << stopped.error_message();
    EXPECT_EQ(loading.status.error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_EQ(loading.status.error_message(), "stopped while loading");
    EXPECT_EQ(gate_.reads(), reads + 1) << "the one that waited was the last";
    // Memory does not suffice for two of them.
    const grpc::Status again = Load(small, attempt + 1);
    EXPECT_TRUE(again.ok()) << again.error_message();
    EXPECT_TRUE(Stop(small, attempt + 1).ok());
    EXPECT_NE(steps.Next(2), "");
  }
}

TEST_F(ServingLoadingTest, ShutdownWaitsForAtMostOneRead) {
  Start(NewCpuDevice({1, 1 << 28}));
  const Model large = Make("serving/lm", 64, 1), small = Make("serving/lm/ssm0", 32, 2);
  ASSERT_TRUE(Load(large).ok());
  Steps steps(*this, large);
  EXPECT_NE(steps.Next(1), "");
  Loading loading(*this, small, 1, 7);
  EXPECT_TRUE(loading.waits);
  std::thread end([&] { service_->AbortAll("the worker is shutting down"); });
  steps.AwaitEnd();  // so freeing has begun
  gate_.Release();
  end.join();
  loading.thread.join();
  EXPECT_EQ(loading.status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(loading.status.error_message(), "stopped while loading");
  EXPECT_EQ(gate_.reads(), 8);
  EXPECT_TRUE(service_->running_jobs().empty());
}

// Otherwise its lease would expire while a large model is freed.
TEST_F(ServingLoadingTest, HeartbeatsContinueWhileMemoryIsFreed) {
  auto device = std::make_unique<SlowToFree>(CpuDeviceOptions{1, 1 << 28});
  SlowToFree& slow = *device;
  Start(std::move(device));
  const Model model = Make("serving/lm", 32, 1);
  ASSERT_TRUE(Load(model).ok());
  slow.Hold(true);
  std::thread stopper([&] { EXPECT_TRUE(Stop(model).ok()); });
  EXPECT_TRUE(slow.AwaitFree());
  std::atomic<bool> answered{false};
  // What a heartbeat reports.
  std::thread heart([&] {
    EXPECT_TRUE(service_->running_jobs().empty());
    answered = true;
  });
  // The next load needs that memory, so it waits.
  std::atomic<bool> loaded{false};
  std::thread next([&] {
    EXPECT_TRUE(Load(model, 2).ok());
    loaded = true;
  });
  for (int i = 0; i < 2000 && !answered; ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(answered);
  EXPECT_FALSE(loaded);
  slow.Hold(false);
  heart.join();
  stopper.join();
  next.join();
}

TEST_F(ServingLoadingTest, TruncatedFileDoesNotAffectOtherModels) {
  Start(NewCpuDevice({1, 1 << 28}));
  const Model large = Make("serving/lm", 64, 1), small = Make("serving/lm/ssm0", 32, 2);
  ASSERT_TRUE(Load(large).ok());
  Steps steps(*this, large);
  Loading loading(*this, small, 1, 7);
  EXPECT_TRUE(loading.waits);
  EXPECT_NE(steps.Next(1), "");
  const std::string path =
      JoinPath(JoinPath(testing::TempDir(), small.request.folder()), "model.safetensors");
  std::filesystem::resize_file(path, 4096);
  gate_.Release();
  loading.thread.join();
  EXPECT_EQ(loading.status.error_code(), grpc::StatusCode::OUT_OF_RANGE)
      << loading.status.error_message();
  EXPECT_NE(loading.status.error_message().find("model.safetensors"), std::string::npos);
  EXPECT_NE(steps.Next(2), "");
  EXPECT_EQ(service_->running_jobs(), std::vector<std::string>{large.job});
}

}  // namespace
}  // namespace espalier
