#include <algorithm>

#include "ops/cuda/element_bits.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_triangle {

template <typename T>
struct TriangleElement {
  const T* x;
  T* y;
  int64_t rows, columns;
  int64_t diagonal;  // the column of the first row in which j - i is k
  bool upper;
  __device__ void operator()(int64_t i) const {
    const int64_t from = i % columns - i / columns % rows - diagonal;
    y[i] = (upper ? from >= 0 : from <= 0) ? x[i] : T(0);
  }
};

}  // namespace cuda_triangle

// The gradient is the same operator on dy. A shard uses its position in the whole matrix.
void RegisterTriangleCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_triangle;
  const KernelFactory factory = [](const KernelSpec& spec, std::string*) {
    const bool upper = spec.attributes.Bool("upper");
    const int64_t limit = int64_t{1} << 48;
    const int64_t k = std::clamp(spec.attributes.Int("k"), -limit, limit);
    return MakeKernel([=](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      if (!y.present()) return KernelStatus::Ok();
      const size_t rank = x.dims().size();
      const int64_t shift = x.spec.offset[rank - 2] - x.spec.offset[rank - 1];
      return DispatchBits(y.dtype(), "triangle", [&](auto type) {
        using T = typename decltype(type)::T;
        return ForEach(y.num_elements(),
                       TriangleElement<T>{x.as<T>(), y.as<T>(), x.dims()[rank - 2],
                                          x.dims()[rank - 1], shift + k, upper},
                       StreamOf(args), "triangle");
      });
    });
  };
  registry.Add("triangle", factory);
  registry.Add("triangle_grad", factory);
}

}  // namespace espalier
