// Of equal indices the last one counts: a first pass finds the largest element of x for each, so
// the result does not depend on the order of the threads.
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/kernel/max_pool_index.h"

namespace espalier {
namespace cuda_max_unpool {

struct Claim {
  MaxPoolIndex index;  // of the unpooled tensor
  int64_t area;        // of a plane of x
  const int64_t* indices;
  unsigned long long* last;  // per element of y: 1 + the element of x that it gets
  FaultSink faults;
  __device__ void operator()(int64_t i) const {
    const int64_t plane = i / area, whole = index.height * index.width;
    const int64_t at = indices[i] - index.Start(plane);
    if (at < 0 || at >= whole) {
      faults.Report(FaultKind::kUnpoolIndex, i, indices[i], index.Start(plane) + whole);
      return;
    }
    atomicMax(last + plane * whole + at, static_cast<unsigned long long>(i) + 1);
  }
};

template <typename T>
struct Take {
  const unsigned long long* last;
  const T* x;
  T* y;
  __device__ void operator()(int64_t o) const {
    y[o] = last[o] == 0 ? FromFloat<T>(0.0f) : x[last[o] - 1];
  }
};

template <typename T>
struct TakeBack {
  MaxPoolIndex index;
  int64_t area;
  const int64_t* indices;
  const unsigned long long* last;
  const T* dy;
  T* dx;
  __device__ void operator()(int64_t i) const {
    const int64_t plane = i / area, whole = index.height * index.width;
    const int64_t at = indices[i] - index.Start(plane), o = plane * whole + at;
    const bool used = at >= 0 && at < whole && last[o] == static_cast<unsigned long long>(i) + 1;
    dx[i] = used ? dy[o] : FromFloat<T>(0.0f);
  }
};

int64_t AreaOf(const TensorView& x) { return x.dims()[2] * x.dims()[3]; }

// Fills the workspace: one number per element of `whole`.
KernelStatus FindLast(DeviceContexts& contexts, const KernelArgs& args, const TensorView& indices,
                      const TensorSpec& whole) {
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
  unsigned long long* last = static_cast<unsigned long long*>(args.workspace);
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(last, 0, static_cast<size_t>(whole.num_elements()) * sizeof(*last),
                                 StreamOf(args)),
                 "max_unpool"));
  return ForEach(
      indices.num_elements(),
      Claim{MaxPoolIndex(whole), AreaOf(indices), indices.as<int64_t>(), last, context->faults()},
      StreamOf(args), "max_unpool");
}

KernelStatus Forward(DeviceContexts& contexts, const KernelArgs& args) {
  const TensorView &x = args.inputs[0], &indices = args.inputs[1], &y = args.outputs[0];
  if (y.num_elements() == 0) return KernelStatus::Ok();
  ESPALIER_KERNEL_RETURN_IF_ERROR(FindLast(contexts, args, indices, y.spec));
  return DispatchFloat(y.dtype(), "max_unpool", [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(
        y.num_elements(),
        Take<T>{static_cast<const unsigned long long*>(args.workspace), x.as<T>(), y.as<T>()},
        StreamOf(args), "max_unpool");
  });
}

// indices, dy -> dx
KernelStatus Backward(DeviceContexts& contexts, const KernelArgs& args) {
  const TensorView &indices = args.inputs[0], &dy = args.inputs[1], &dx = args.outputs[0];
  if (!dx.present() || dy.num_elements() == 0) return KernelStatus::Ok();
  ESPALIER_KERNEL_RETURN_IF_ERROR(FindLast(contexts, args, indices, dy.spec));
  return DispatchFloat(dx.dtype(), "max_unpool_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(
        dx.num_elements(),
        TakeBack<T>{MaxPoolIndex(dy.spec), AreaOf(indices), indices.as<int64_t>(),
                    static_cast<const unsigned long long*>(args.workspace), dy.as<T>(), dx.as<T>()},
        StreamOf(args), "max_unpool_grad");
  });
}

size_t Bytes(const TensorSpec& whole) {
  return static_cast<size_t>(whole.num_elements()) * sizeof(unsigned long long);
}

}  // namespace cuda_max_unpool

void RegisterMaxUnpoolCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_max_unpool;
  registry.Add(
      "max_unpool",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        return MakeKernel([&contexts](const KernelArgs& args) { return Forward(contexts, args); },
                          Bytes(spec.outputs[0]));
      });
  registry.Add(
      "max_unpool_grad",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[1].dtype, refusal)) return nullptr;
        return MakeKernel([&contexts](const KernelArgs& args) { return Backward(contexts, args); },
                          Bytes(spec.inputs[1]));
      });
}

}  // namespace espalier
