#include "ops/cuda/element_bits.cuh"
#include "ops/cuda/labels.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/kernel/axis_lines.h"

namespace espalier {
namespace cuda_one_hot {

template <typename T>
struct OneHotElement {
  Integers indices;
  T* y;
  int64_t depth, inner;
  T on, off;
  __device__ void operator()(int64_t i) const {
    const int64_t index = indices[i / (depth * inner) * inner + i % inner];
    const int64_t place = i / inner % depth;
    y[i] = index == place || index + depth == place ? on : off;
  }
};

}  // namespace cuda_one_hot

void RegisterOneHotCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_one_hot;
  registry.Add("one_hot", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      const TensorView& y = args.outputs[0];
      const AxisLines lines(y.dims(), attributes.Int("axis"));
      return DispatchBits(y.dtype(), "one_hot", [&](auto type) {
        using T = typename decltype(type)::T;
        return ForEach(
            y.num_elements(),
            OneHotElement<T>{Integers::Of(args.inputs[0]), y.as<T>(), lines.length, lines.inner,
                             static_cast<T>(BitsOf(y.dtype(), attributes.Float("on"))),
                             static_cast<T>(BitsOf(y.dtype(), attributes.Float("off")))},
            StreamOf(args), "one_hot");
      });
    });
  });
}

}  // namespace espalier
