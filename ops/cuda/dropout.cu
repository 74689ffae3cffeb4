#include <algorithm>

#include "ops/cuda/copy.h"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/cuda/strided.h"
#include "ops/kernel/philox.h"

namespace espalier {
namespace cuda_dropout {

// Maps the row-major index of an element of a shard to that in the whole tensor.
struct WholeIndex {
  int rank = 0;
  int64_t size[8] = {};
  int64_t stride[8] = {};
  int64_t first = 0;

  explicit WholeIndex(const TensorSpec& spec) {
    const Dims whole = DenseStrides(spec.global);
    for (size_t d = 0; d < spec.dims.size(); ++d) {
      first += spec.offset[d] * whole[d];
      if (rank > 0 && stride[rank - 1] == whole[d] * spec.dims[d]) {
        size[rank - 1] *= spec.dims[d];
        stride[rank - 1] = whole[d];
        continue;
      }
      size[rank] = spec.dims[d];
      stride[rank] = whole[d];
      ++rank;
    }
  }

  __device__ int64_t operator()(int64_t i) const {
    int64_t at = first;
    for (int d = rank - 1; d > 0; --d) {
      const int64_t next = i / size[d];
      at += (i - next * size[d]) * stride[d];
      i = next;
    }
    return rank == 0 ? at : at + i * stride[0];
  }
};

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
