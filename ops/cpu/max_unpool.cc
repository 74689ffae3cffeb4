#include <algorithm>
#include <string>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/max_pool_index.h"

namespace espalier {
namespace {

// An index must lie in the plane of its own channel: `whole` is the unpooled tensor.
KernelStatus CheckIndices(const TensorView& indices, const TensorSpec& whole) {
  const MaxPoolIndex index(whole);
  const int64_t area = indices.dims()[2] * indices.dims()[3], plane = index.height * index.width;
  for (int64_t i = 0; i < indices.num_elements(); ++i) {
    const int64_t start = index.Start(i / area), found = indices.as<int64_t>()[i];
    if (found >= start && found < start + plane) continue;
    return KernelStatus::Error("max_unpool: indices[" + std::to_string(i) + "] is " +
                               std::to_string(found) + ", expected " + std::to_string(start) +
                               " to " + std::to_string(start + plane - 1) +
                               ", the plane of its channel");
  }
  return KernelStatus::Ok();
}

// Calls f(element of x, element of y) for all elements of x, in order within a plane.
template <typename F>
void ForEachPair(const TensorView& indices, const TensorSpec& whole, const F& f) {
  const MaxPoolIndex index(whole);
  const int64_t area = indices.dims()[2] * indices.dims()[3], plane = index.height * index.width;
  ParallelRanges(whole.dims[0] * whole.dims[1], 2 * area, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      for (int64_t i = p * area; i < (p + 1) * area; ++i) {
        f(i, p * plane + indices.as<int64_t>()[i] - index.Start(p));
      }
    }
  });
}

KernelStatus Forward(const KernelArgs& args) {
  const TensorView &x = args.inputs[0], &indices = args.inputs[1], &y = args.outputs[0];
  if (KernelStatus status = CheckIndices(indices, y.spec); !status.ok()) return status;
  float* to = y.as<float>();
  ParallelRanges(y.num_elements(), 1,
                 [&](int64_t begin, int64_t end) { std::fill(to + begin, to + end, 0.0f); });
  ForEachPair(indices, y.spec, [&](int64_t i, int64_t o) { to[o] = x.as<float>()[i]; });
  return KernelStatus::Ok();
}

// indices, dy -> dx
KernelStatus Backward(const KernelArgs& args) {
  const TensorView &indices = args.inputs[0], &dy = args.inputs[1], &dx = args.outputs[0];
  if (!dx.present()) return KernelStatus::Ok();
  if (KernelStatus status = CheckIndices(indices, dy.spec); !status.ok()) return status;
  // If indices repeat, only the last one was used.
  int64_t* used = static_cast<int64_t*>(args.workspace);
  std::fill_n(used, dy.num_elements(), int64_t{-1});
  ForEachPair(indices, dy.spec, [&](int64_t i, int64_t o) { used[o] = i; });
  ForEachPair(indices, dy.spec, [&](int64_t i, int64_t o) {
    dx.as<float>()[i] = used[o] == i ? dy.as<float>()[o] : 0.0f;
  });
  return KernelStatus::Ok();
}

}  // namespace

void RegisterMaxUnpoolCpu(KernelRegistry& registry) {
  registry.Add("max_unpool",
               ViaF32([](const KernelSpec&, std::string*) { return MakeKernel(Forward); }));
  registry.Add("max_unpool_grad", ViaF32([](const KernelSpec& spec, std::string*) {
                 return MakeKernel(Backward, spec.inputs[1].num_elements() * sizeof(int64_t));
               }));
}

}  // namespace espalier
