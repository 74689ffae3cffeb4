// Resizing: one pass per dimension that changes. The taps are copied to the device when the kernel
// is created.
#include <utility>

#include "ops/cuda/copy.h"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/kernel/resize_taps.h"

namespace espalier {
namespace cuda_resize {

// ResizeTaps on the device, as one block.
struct DeviceTaps {
  const int64_t* begin;
  const int64_t* index;
  const float* weight;
  const float* fill;
};

template <typename From, typename To>
struct Combine {
  DeviceTaps taps;
  int64_t in, out, inner;
  const From* x;
  To* y;
  __device__ void operator()(int64_t at) const {
    const int64_t column = at % inner, row = at / inner;
    const int64_t i = row % out;
    const From* source = x + row / out * in * inner + column;
    float sum = taps.fill[i];
    for (int64_t t = taps.begin[i]; t < taps.begin[i + 1]; ++t) {
      sum += taps.weight[t] * ToFloat(source[taps.index[t] * inner]);
    }
    y[at] = FromFloat<To>(sum);
  }
};

class ResizeKernel : public Kernel {
 public:
  ResizeKernel() = default;
  ResizeKernel(const ResizeKernel&) = delete;
  ResizeKernel& operator=(const ResizeKernel&) = delete;
  ~ResizeKernel() override {
    for (const Pass& pass : passes_) cudaFree(pass.memory);
  }

  KernelStatus Prepare(const std::vector<ResizePass>& passes) {
    const size_t between = static_cast<size_t>(LargestBetween(passes)) * sizeof(float);
    halves_[0] = layout_.Add(between);
    halves_[1] = layout_.Add(between);
    for (const ResizePass& pass : passes) {
      passes_.push_back({pass.outer, pass.in, pass.out, pass.inner});
      ESPALIER_KERNEL_RETURN_IF_ERROR(Upload(pass.taps, &passes_.back()));
    }
    return KernelStatus::Ok();
  }

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    const TensorView &x = args.inputs[0], &y = args.outputs[0];
    if (!y.present()) return KernelStatus::Ok();
    if (passes_.empty()) return CopyWhole(x, y, args.stream, "resize");
    return DispatchFloat(x.dtype(), "resize", [&](auto type) {
      using T = typename decltype(type)::T;
      const size_t last = passes_.size() - 1;
      const T* first = x.as<T>();
      if (last == 0) return RunPass(passes_[0], first, y.as<T>(), args);
      ESPALIER_KERNEL_RETURN_IF_ERROR(RunPass(passes_[0], first, Half(args, 0), args));
      for (size_t i = 1; i < last; ++i) {
        ESPALIER_KERNEL_RETURN_IF_ERROR(
            RunPass(passes_[i], Half(args, i - 1), Half(args, i), args));
      }
      return RunPass(passes_[last], Half(args, last - 1), y.as<T>(), args);
    });
  }

 private:
  struct Pass {
    int64_t outer, in, out, inner;
    void* memory = nullptr;
    DeviceTaps taps = {};
  };

  float* Half(const KernelArgs& args, size_t pass) const {
    return WorkspaceAt<float>(args, halves_[pass % 2]);
  }

  template <typename From, typename To>
  static KernelStatus RunPass(const Pass& p, const From* x, To* y, const KernelArgs& args) {
    return ForEach(p.outer * p.out * p.inner, Combine<From, To>{p.taps, p.in, p.out, p.inner, x, y},
                   StreamOf(args), "resize");
  }

  static KernelStatus Upload(const ResizeTaps& taps, Pass* pass) {
    WorkspaceLayout layout;
    const auto add = [&layout](const auto& values) {
      return layout.Add(values.size() * sizeof(values[0]));
    };
    const size_t begin = add(taps.begin), index = add(taps.index), weight = add(taps.weight),
                 fill = add(taps.fill);
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        CudaStatus(cudaMalloc(&pass->memory, layout.bytes()), "resize"));
    char* base = static_cast<char*>(pass->memory);
    const auto put = [base](size_t at, const auto& values) {
      return CudaStatus(cudaMemcpy(base + at, values.data(), values.size() * sizeof(values[0]),
                                   cudaMemcpyHostToDevice),
                        "resize");
    };
    ESPALIER_KERNEL_RETURN_IF_ERROR(put(begin, taps.begin));
    ESPALIER_KERNEL_RETURN_IF_ERROR(put(index, taps.index));
    ESPALIER_KERNEL_RETURN_IF_ERROR(put(weight, taps.weight));
    ESPALIER_KERNEL_RETURN_IF_ERROR(put(fill, taps.fill));
    pass->taps = {reinterpret_cast<const int64_t*>(base + begin),
                  reinterpret_cast<const int64_t*>(base + index),
                  reinterpret_cast<const float*>(base + weight),
                  reinterpret_cast<const float*>(base + fill)};
    return KernelStatus::Ok();
  }

  std::vector<Pass> passes_;
  WorkspaceLayout layout_;
  size_t halves_[2] = {};
};

KernelFactory Factory(bool backward) {
  return [backward](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    const TensorSpec &in = spec.inputs[0], &out = spec.outputs[0];
    if (!TakesFloat(in.dtype, refusal)) return nullptr;
    auto kernel = std::make_unique<ResizeKernel>();
    const std::vector<ResizePass> passes =
        backward ? ResizePasses(spec.attributes, out.dims, in.dims, true)
                 : ResizePasses(spec.attributes, in.dims, out.dims, false);
    if (const KernelStatus made = kernel->Prepare(passes); !made.ok()) {
      *refusal = made.error;
      return nullptr;
    }
    return kernel;
  };
}

}  // namespace cuda_resize

void RegisterResizeCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_resize;
  registry.Add("resize", Factory(false));
  registry.Add("resize_grad", Factory(true));
}

}  // namespace espalier
