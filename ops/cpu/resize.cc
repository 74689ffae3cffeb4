// Resizing: one pass per dimension that changes.
#include <algorithm>
#include <memory>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/layout/copy.h"
#include "ops/cpu/simd/vectorize.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/workspace.h"
#include "ops/kernel/resize_taps.h"

namespace espalier {
namespace {

// Computes element i of y's dimension for one index of `outer` and all `inner` contiguous elements.
void Combine(const ResizeTaps& taps, int64_t i, const float* x, int64_t inner, float* y) {
  const int64_t begin = taps.begin[i], end = taps.begin[i + 1];
  std::fill(y, y + inner, taps.fill[i]);
  for (int64_t t = begin; t < end; ++t) {
    Vectorize(
        [](float weight, const float* x, float* y, int64_t n) {
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) y[j] += weight * x[j];
        },
        taps.weight[t], x + taps.index[t] * inner, y, inner);
  }
}

void RunPass(const ResizePass& pass, const float* x, float* y) {
  const ResizeTaps& taps = pass.taps;
  const int64_t each = 2 + static_cast<int64_t>(taps.index.size()) / std::max<int64_t>(1, pass.out);
  if (pass.inner == 1) {
    ParallelRanges(pass.outer, pass.out * each, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        const float* from = x + o * pass.in;
        float* to = y + o * pass.out;
        for (int64_t i = 0; i < pass.out; ++i) {
          float sum = taps.fill[i];
          for (int64_t t = taps.begin[i]; t < taps.begin[i + 1]; ++t) {
            sum += taps.weight[t] * from[taps.index[t]];
          }
          to[i] = sum;
        }
      }
    });
    return;
  }
  ParallelRanges(pass.outer * pass.out, pass.inner * each, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      Combine(taps, row % pass.out, x + row / pass.out * pass.in * pass.inner, pass.inner,
              y + row * pass.inner);
    }
  });
}

// From input 0 to output 0.
std::unique_ptr<Kernel> MakePasses(std::vector<ResizePass> made) {
  auto passes = std::make_shared<const std::vector<ResizePass>>(std::move(made));
  WorkspaceLayout layout;
  const size_t bytes = LargestBetween(*passes) * sizeof(float);
  const size_t halves[] = {layout.Add(bytes), layout.Add(bytes)};
  return MakeKernel(
      [passes, first = halves[0], second = halves[1]](const KernelArgs& args) {
        const TensorView &x = args.inputs[0], &y = args.outputs[0];
        if (!y.present()) return KernelStatus::Ok();
        if (passes->empty()) CopyBytes(x.data, y.data, y.spec.bytes());
        const float* from = x.as<float>();
        for (size_t i = 0; i < passes->size(); ++i) {
          float* to = i + 1 == passes->size()
                          ? y.as<float>()
                          : WorkspaceAt(args.workspace, i % 2 == 0 ? first : second);
          RunPass((*passes)[i], from, to);
          from = to;
        }
        return KernelStatus::Ok();
      },
      layout.bytes());
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  return MakePasses(
      ResizePasses(spec.attributes, spec.inputs[0].dims, spec.outputs[0].dims, false));
}

// dy -> dx
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  return MakePasses(ResizePasses(spec.attributes, spec.outputs[0].dims, spec.inputs[0].dims, true));
}

}  // namespace

void RegisterResizeCpu(KernelRegistry& registry) {
  registry.Add("resize", ViaF32(MakeForward));
  registry.Add("resize_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
