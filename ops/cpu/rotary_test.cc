// Sharing of tables among the rotary kernels of a registry; embedding_test.cc tests their results.
#include <malloc.h>

#include <numeric>
#include <thread>

#include "ops/cpu/testing/op_runner.h"

namespace espalier {
namespace {

constexpr int64_t kDim = 64, kRows = 4096;

// Kernels of one registry, as the nodes of a program have them.
class RotaryKernelsTest : public ::testing::Test {
 protected:
  RotaryKernelsTest() {
    RegisterCpuKernels(registry_);
    std::iota(positions_.as<int32_t>(), positions_.as<int32_t>() + kRows, 0);
  }

  std::unique_ptr<Kernel> Make(const Attributes& more = {}) {
    Attributes attributes = {{"head_dim", kDim}, {"theta", 10000.0}};
    for (const auto& [name, value] : more.values()) attributes.Set(name, value);
    const KernelSpec spec{"rotary",
                          attributes,
                          {TensorSpec::Whole(x_.type), TensorSpec::Whole(positions_.type)},
                          {TensorSpec::Whole(x_.type)}};
    std::string error;
    std::unique_ptr<Kernel> kernel = registry_.Create(spec, &error);
    EXPECT_NE(kernel, nullptr) << error;
    return kernel;
  }

  // Into `y`, which is as large as x.
  void Run(Kernel& kernel, TestTensor* y) {
    const TensorView in[] = {{x_.bytes.data(), TensorSpec::Whole(x_.type)},
                             {positions_.bytes.data(), TensorSpec::Whole(positions_.type)}};
    const TensorView out[] = {{y->bytes.data(), TensorSpec::Whole(y->type)}};
    KernelArgs args;
    args.inputs = in;
    args.outputs = out;
    const KernelStatus status = kernel.Run(args);
    EXPECT_TRUE(status.ok()) << status.error;
  }

  KernelRegistry registry_;
  TestTensor x_ = Random({kRows, kDim}, 1);
  TestTensor positions_ = Zeros(DType::kI32, {kRows});
};

// Returns the bytes of heap in use; always 0 under sanitizers, which replace the heap.
size_t InUse() {
  const struct mallinfo2 heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

// A model has two such nodes per layer: with one table each, a long context would take gigabytes
// that no memory plan includes.
TEST_F(RotaryKernelsTest, SameFrequenciesShareOneTable) {
  constexpr size_t kTable = kRows * kDim * sizeof(float);
  std::vector<std::unique_ptr<Kernel>> kernels;
  TestTensor y = Zeros(DType::kF32, {kRows, kDim});
  const size_t before = InUse();
  for (int i = 0; i < 8; ++i) {
    kernels.push_back(Make());
    Run(*kernels.back(), &y);
  }
  EXPECT_LT(InUse(), before + 2 * kTable);
  // The last kernel frees the table.
  kernels.clear();
  EXPECT_LT(InUse(), before + kTable / 2);
}

TEST_F(RotaryKernelsTest, DifferentFrequenciesUseSeparateTables) {
  const auto result = [&](Kernel& kernel) {
    TestTensor y = Zeros(DType::kF32, {kRows, kDim});
    Run(kernel, &y);
    return y.bytes;
  };
  const std::vector<Attributes> kinds = {
      {}, {{"theta", 500.0}}, {{"magnitude", 1.5}}, {{"frequencies", std::vector<double>{1, 0.5}}}};
  std::vector<std::unique_ptr<Kernel>> together;
  for (const Attributes& kind : kinds) together.push_back(Make(kind));
  std::vector<std::vector<char>> results;
  for (const auto& kernel : together) results.push_back(result(*kernel));
  together.clear();
  for (size_t i = 0; i < kinds.size(); ++i) {
    EXPECT_EQ(results[i], result(*Make(kinds[i]))) << i;
    for (size_t j = 0; j < i; ++j) EXPECT_NE(results[i], results[j]);
  }
}

// Models of one device run in different threads.
TEST_F(RotaryKernelsTest, ThreadsFillTheTableTogether) {
  constexpr int kThreads = 4;
  std::vector<TestTensor> y(kThreads, Zeros(DType::kF32, {kRows, kDim}));
  {
    std::vector<std::unique_ptr<Kernel>> kernels;
    for (int i = 0; i < kThreads; ++i) kernels.push_back(Make());
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back([&, i] { Run(*kernels[i], &y[i]); });
    for (std::thread& thread : threads) thread.join();
  }
  TestTensor alone = Zeros(DType::kF32, {kRows, kDim});
  Run(*Make(), &alone);
  for (const TestTensor& each : y) EXPECT_EQ(each.bytes, alone.bytes);
}

}  // namespace
}  // namespace espalier
