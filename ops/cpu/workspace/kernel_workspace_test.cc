#include "ops/cpu/workspace/kernel_workspace.h"

#include <omp.h>

#include <string>

#include "gtest/gtest.h"
#include "ops/cpu/register_all.h"

namespace espalier {
namespace {

TensorSpec F32(const Dims& dims) { return TensorSpec::Whole({DType::kF32, dims}); }

KernelSpec ConvolutionGradient(int64_t batch) {
  KernelSpec spec;
  spec.op = "conv2d_grad";
  spec.attributes = {{"strides", std::vector<int64_t>{1, 1}},
                     {"pads", std::vector<int64_t>{1, 1, 1, 1}},
                     {"dilations", std::vector<int64_t>{1, 1}},
                     {"groups", int64_t{1}}};
  const TensorSpec image = F32({batch, 16, 32, 32}), weight = F32({16, 16, 3, 3});
  spec.inputs = {image, weight, TensorSpec(), TensorSpec(), image};
  spec.outputs = {image, weight, F32({16})};
  return spec;
}

// The bytes of a kernel that is made as the executor makes it.
std::optional<int64_t> Made(const KernelSpec& spec, int threads) {
  omp_set_num_threads(threads);
  KernelRegistry kernels;
  RegisterCpuKernels(kernels);
  std::string error;
  const std::unique_ptr<Kernel> kernel = kernels.Create(spec, &error);
  EXPECT_NE(kernel, nullptr) << error;
  if (kernel == nullptr) return std::nullopt;
  return static_cast<int64_t>(kernel->workspace_bytes());
}

TEST(CpuKernelWorkspace, IsThatOfTheKernelWithSoManyThreads) {
  CpuKernelWorkspace workspace;
  const int before = omp_get_max_threads();
  for (int threads : {1, 2, 5}) {
    for (int64_t batch : {1, 8}) {
      const KernelSpec spec = ConvolutionGradient(batch);
      const std::optional<int64_t> expected = Made(spec, threads);
      ASSERT_TRUE(expected.has_value());
      EXPECT_GT(*expected, 0);
      omp_set_num_threads(3);
      EXPECT_EQ(workspace.Bytes(spec, threads), expected) << threads << " threads";
      EXPECT_EQ(workspace.Bytes(spec, threads), expected) << "remembered";
      EXPECT_EQ(omp_get_max_threads(), 3) << "left as it was";
    }
  }
  omp_set_num_threads(before);
}

TEST(CpuKernelWorkspace, HasNoAnswerForWhatNoKernelSupports) {
  CpuKernelWorkspace workspace;
  KernelSpec spec;
  spec.op = "no_such_operator";
  EXPECT_EQ(workspace.Bytes(spec, 1), std::nullopt);
}

}  // namespace
}  // namespace espalier
