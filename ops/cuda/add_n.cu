#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/cuda/strided.h"

namespace espalier {
namespace cuda_add_n {

// Operands of one launch; longer sums continue from the partial result.
constexpr int kMaxOperands = 16;

template <typename T>
struct SumOperands {
  const T* x[kMaxOperands];
  int count;
  T* y;
  __device__ void operator()(int64_t i) const {
    auto sum = Compute<T>::Load(x[0][i]);
    for (int k = 1; k < count; ++k) sum += Compute<T>::Load(x[k][i]);
    y[i] = Compute<T>::Store(sum);
  }
};

KernelStatus Run(const KernelArgs& args) {
  const TensorView& y = args.outputs[0];
  if (!y.present()) return KernelStatus::Ok();
  return DispatchNumber(y.dtype(), "add_n", [&](auto type) {
    using T = typename decltype(type)::T;
    size_t next = 0;
    while (next < args.inputs.size()) {
      SumOperands<T> sum{};
      sum.y = y.as<T>();
      if (next > 0) sum.x[sum.count++] = y.as<T>();
      while (next < args.inputs.size() && sum.count < kMaxOperands) {
        sum.x[sum.count++] = args.inputs[next++].as<T>();
      }
      ESPALIER_KERNEL_RETURN_IF_ERROR(ForEach(y.num_elements(), sum, StreamOf(args), "add_n"));
    }
    return KernelStatus::Ok();
  });
}

// Every operand's gradient is that of the sum.
KernelStatus RunGradient(const KernelArgs& args) {
  const TensorView& dy = args.inputs[0];
  for (const TensorView& dx : args.outputs) {
    if (!dx.present() || dx.data == dy.data) continue;
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(dx.data, dy.data, static_cast<size_t>(dy.spec.bytes()),
                                   cudaMemcpyDeviceToDevice, StreamOf(args)),
                   "add_n_grad"));
  }
  return KernelStatus::Ok();
}

}  // namespace cuda_add_n

void RegisterAddNCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_add_n;
  registry.Add("add_n",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesNumber(spec.outputs[0].dtype, refusal)) return nullptr;
                 return MakeKernel(Run);
               });
  registry.Add("add_n_grad",
               [](const KernelSpec&, std::string*) { return MakeKernel(RunGradient); });
}

}  // namespace espalier
