#include "worker/device/device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/layout/copy_box.h"

namespace espalier {
namespace {

TEST(BoxCopy, CopiesAndAccumulatesAnInnerBox) {
  std::vector<float> source(4 * 5), destination(3 * 6, 1.0f);
  std::iota(source.begin(), source.end(), 0.0f);
  BoxCopy copy{
      source.data(), destination.data(), DType::kF32, {4, 5}, {3, 6}, {1, 2}, {0, 3}, {2, 3},
      false};
  CopyBoxOnHost(copy);
  copy.accumulate = true;
  CopyBoxOnHost(copy);
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 6; ++c) {
      const bool inside = r < 2 && c >= 3;
      EXPECT_EQ(destination[r * 6 + c], inside ? 2 * source[(r + 1) * 5 + c - 1] : 1.0f);
    }
  }
}

TEST(BoxCopy, WholeTensorsAndScalars) {
  std::vector<int64_t> source(24), destination(24);
  std::iota(source.begin(), source.end(), 7);
  CopyBoxOnHost({source.data(),
                 destination.data(),
                 DType::kI64,
                 {2, 3, 4},
                 {2, 3, 4},
                 {0, 0, 0},
                 {0, 0, 0},
                 {2, 3, 4},
                 false});
  EXPECT_EQ(source, destination);
  float a = 3, b = 4;
  CopyBoxOnHost({&a, &b, DType::kF32, {}, {}, {}, {}, {}, true});
  EXPECT_EQ(b, 7);
}

TEST(Half, EveryFiniteF16SurvivesTheRoundTrip) {
  for (uint32_t v = 0; v < 65536; ++v) {
    const float f = F16ToF32(static_cast<uint16_t>(v));
    if (!std::isnan(f)) {
      ASSERT_EQ(F32ToF16(f), v);
    }
  }
  EXPECT_EQ(F32ToF16(65519.0f), 0x7bff);  // largest finite
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);  // ties to even: infinity
  EXPECT_EQ(F32ToF16(1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(F32ToF16(1.0f + 3 * 0x1p-11f), 0x3c02);
  EXPECT_EQ(F32ToBF16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(F32ToBF16(1.0f + 3 * 0x1p-8f), 0x3f82);
}

TEST(CpuDevice, RefusesMoreThanItsLimitAndGivesMemoryBack) {
  auto device = NewCpuDevice({1, 1 << 20});
  auto first = device->Allocate(700000);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ((*first)->data()[699999], 0);
  auto second = device->Allocate(700000);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  first->reset();
  EXPECT_TRUE(device->Allocate(700000).ok());
}

TEST(CpuDevice, DevicesOfOneBudgetShareItsBytes) {
  const auto budget = std::make_shared<MemoryBudget>(1000000);
  const auto a = NewCpuDevice({.budget = budget}), b = NewCpuDevice({.budget = budget});
  EXPECT_EQ(b->description().memory_bytes(), 1000000);
  auto first = a->Allocate(700000);
  ASSERT_TRUE(first.ok());
  const absl::Status refused = b->Allocate(700000).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("300000 of 1000000"), std::string::npos) << refused;
  EXPECT_EQ(budget->left(), 300000);
  first->reset();
  EXPECT_TRUE(b->Allocate(700000).ok());
}

// Streamed weights use the same memory unless they are on disk.
TEST(CpuDevice, HostMemoryCountsAgainstASharedBudget) {
  const auto budget = std::make_shared<MemoryBudget>(1000000);
  const auto device = NewCpuDevice({.budget = budget});
  auto first = device->AllocateHost(700000);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->data()[699999], 0);
  EXPECT_EQ(budget->left(), 300000);
  const absl::Status refused = device->AllocateHost(300001).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("--serving-swap-dir"), std::string::npos) << refused;
  first->reset();
  EXPECT_EQ(budget->left(), 1000000);
  const auto on_disk =
      NewCpuDevice({.swap_folder = ::testing::TempDir(), .budget = budget})->AllocateHost(700000);
  ASSERT_TRUE(on_disk.ok()) << on_disk.status();
  EXPECT_EQ(budget->left(), 1000000);
  // A worker's limit covers its programs only.
  EXPECT_TRUE(NewCpuDevice({1, 100000})->AllocateHost(700000).ok());
}

TEST(CpuDevice, ConcurrentAllocationsStayWithinTheLimit) {
  auto device = NewCpuDevice({1, 3 << 20});
  for (int round = 0; round < 2000; ++round) {
    std::atomic<int> ready{0}, granted{0};
    const auto ask = [&] {
      ++ready;
      while (ready < 2) std::this_thread::yield();
      std::unique_ptr<DeviceMemory> held[2];
      for (std::unique_ptr<DeviceMemory>& memory : held) {
        auto made = device->Allocate(1 << 20);
        if (!made.ok()) continue;
        memory = *std::move(made);
        ++granted;
      }
      ++ready;
      while (ready < 4) std::this_thread::yield();
    };
    std::thread other(ask);
    ask();
    other.join();
    ASSERT_EQ(granted, 3) << "in round " << round;
  }
}

TEST(CpuDevice, AsynchronousCopiesToMemoryOrAFolder) {
  const char* folder = std::getenv("TEST_TMPDIR");
  for (const std::string& where :
       {std::string(), std::string(folder != nullptr ? folder : "/tmp")}) {
    auto device = NewCpuDevice({1, 1 << 24, where});
    const int64_t bytes = 1 << 20;
    auto memory = device->Allocate(4 * bytes);
    ASSERT_TRUE(memory.ok());
    char* data = (*memory)->data();
    std::vector<std::unique_ptr<HostMemory>> slots;
    std::vector<uint64_t> tickets;
    for (int i = 0; i < 4; ++i) {
      auto host = device->AllocateHost(bytes);
      ASSERT_TRUE(host.ok()) << host.status();
      slots.push_back(*std::move(host));
      std::memset(data + i * bytes, i + 1, bytes);
      auto ticket = device->BeginCopyToHost(slots.back()->data(), data + i * bytes, bytes);
      ASSERT_TRUE(ticket.ok());
      tickets.push_back(*ticket);
    }
    for (uint64_t ticket : tickets) ASSERT_TRUE(device->AwaitCopy(ticket).ok());
    for (int i = 0; i < 4; ++i) {  // back in another order
      auto ticket = device->BeginCopyToDevice(data + i * bytes, slots[3 - i]->data(), bytes);
      ASSERT_TRUE(ticket.ok());
      ASSERT_TRUE(device->AwaitCopy(*ticket).ok());
      EXPECT_EQ(data[i * bytes], 4 - i);
      EXPECT_EQ(data[(i + 1) * bytes - 1], 4 - i);
    }
  }
  const auto nowhere = NewCpuDevice({1, 1 << 20, "/no such folder"})->AllocateHost(4096);
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(nowhere.status().message()).find("/no such folder"), std::string::npos);
}

TEST(CudaDevice, WithoutPluginSaysWhereItLooked) {
  auto device = OpenCudaDevice("/nowhere/libespalier_cuda.so", 0, 0);
  EXPECT_EQ(device.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(device.status().message()).find("/nowhere/libespalier_cuda.so"),
            std::string::npos);
}

}  // namespace
}  // namespace espalier
