#include <algorithm>

#include "ops/cuda/copy.h"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/cuda/whole_index.cuh"
#include "ops/kernel/philox.h"

namespace espalier {
namespace cuda_dropout {

template <typename T>
struct Drop {
  const T* x;
  T* y;
  WholeIndex whole;
  uint64_t seed, node_key, step;
  float rate, scale;
  __device__ void operator()(int64_t i) const {
    const uint64_t element = static_cast<uint64_t>(whole(i));
    const bool keep = PhiloxUniform(seed, node_key, step, element) >= rate;
    y[i] = FromFloat<T>(keep ? ToFloat(x[i]) * scale : 0.0f);
  }
};

// The same kernel is the gradient, with dy and dx as x and y.
KernelStatus Run(const KernelArgs& args, double rate) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (!y.present()) return KernelStatus::Ok();
  if (!args.training || rate == 0) return CopyWhole(x, y, args.stream, "dropout");
  return DispatchFloat(y.dtype(), "dropout", [&](auto type) {
    using T = typename decltype(type)::T;
    const Drop<T> drop{x.as<T>(),
                       y.as<T>(),
                       WholeIndex(y.spec),
                       args.seed,
                       args.node_key,
                       static_cast<uint64_t>(args.step),
                       static_cast<float>(rate),
                       static_cast<float>(1.0 / (1.0 - rate))};
    return ForEach(y.num_elements(), drop, StreamOf(args), "dropout");
  });
}

}  // namespace cuda_dropout

void RegisterDropoutCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_dropout;
  const KernelFactory factory = [](const KernelSpec& spec,
                                   std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    const double rate = spec.attributes.Float("rate");
    return MakeKernel([rate](const KernelArgs& args) { return Run(args, rate); });
  };
  registry.Add("dropout", factory);
  registry.Add("dropout_grad", factory);
}

}  // namespace espalier
