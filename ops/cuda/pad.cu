#include "ops/cuda/element_bits.cuh"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/cuda/strided.h"
#include "ops/kernel/pad.h"

namespace espalier {
namespace cuda_pad {

struct Padding {
  int rank = 0;
  PadDim dims[8];
  int64_t y_dims[8] = {}, x_strides[8] = {}, y_strides[8] = {};

  Padding(const Attributes& attributes, const Dims& x, const Dims& y)
      : rank(static_cast<int>(x.size())) {
    const std::vector<int64_t> pads = attributes.Ints("pads");
    PadMode mode = PadMode::kConstant;
    PadModeFromName(attributes.String("mode"), &mode);
    const Dims x_dense = DenseStrides(x), y_dense = DenseStrides(y);
    for (int d = 0; d < rank; ++d) {
      dims[d] = {mode, x[d], pads[d], pads[rank + d]};
      y_dims[d] = y[d];
      x_strides[d] = x_dense[d];
      y_strides[d] = y_dense[d];
    }
  }
};

template <typename T>
struct PadElement {
  Padding p;
  const T* x;
  T* y;
  T value;
  __device__ void operator()(int64_t i) const {
    int64_t rest = i, from = 0;
    for (int d = p.rank - 1; d >= 0; --d) {
      const int64_t source = p.dims[d].Source(rest % p.y_dims[d]);
      if (source < 0) {
        y[i] = value;
        return;
      }
      from += source * p.x_strides[d];
      rest /= p.y_dims[d];
    }
    y[i] = x[from];
  }
};

// The sum of dy over all elements that were copied from element i of x.
template <typename T>
struct GradientElement {
  Padding p;
  const T* dy;
  T* dx;
  __device__ void operator()(int64_t i) const {
    PadDim::Row uses[8][2];
    int64_t total = 1, rest = i;
    for (int d = p.rank - 1; d >= 0; --d) {
      const int64_t at = rest % p.dims[d].size;
      rest /= p.dims[d].size;
      uses[d][0] = p.dims[d].Uses(at, 0);
      uses[d][1] = p.dims[d].Uses(at, 1);
      total *= uses[d][0].count + uses[d][1].count;
    }
    float sum = 0;
    for (int64_t k = 0; k < total; ++k) {
      int64_t left = k, from = 0;
      for (int d = p.rank - 1; d >= 0; --d) {
        const int64_t count = uses[d][0].count + uses[d][1].count;
        int64_t n = left % count;
        left /= count;
        const bool second = n >= uses[d][0].count;
        if (second) n -= uses[d][0].count;
        from += (uses[d][second].first + n * uses[d][second].step) * p.y_strides[d];
      }
      sum += ToFloat(dy[from]);
    }
    dx[i] = FromFloat<T>(sum);
  }
};

}  // namespace cuda_pad

void RegisterPadCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_pad;
  registry.Add("pad", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      return DispatchBits(y.dtype(), "pad", [&](auto type) {
        using T = typename decltype(type)::T;
        const T value = static_cast<T>(BitsOf(y.dtype(), attributes.Float("value")));
        return ForEach(
            y.num_elements(),
            PadElement<T>{Padding(attributes, x.dims(), y.dims()), x.as<T>(), y.as<T>(), value},
            StreamOf(args), "pad");
      });
    });
  });
  registry.Add("pad_grad",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.outputs[0].dtype, refusal)) return nullptr;
                 return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
                   const TensorView &dy = args.inputs[0], &dx = args.outputs[0];
                   if (!dx.present()) return KernelStatus::Ok();
                   return DispatchFloat(dx.dtype(), "pad_grad", [&](auto type) {
                     using T = typename decltype(type)::T;
                     return ForEach(dx.num_elements(),
                                    GradientElement<T>{Padding(attributes, dx.dims(), dy.dims()),
                                                       dy.as<T>(), dx.as<T>()},
                                    StreamOf(args), "pad_grad");
                   });
                 });
               });
}

}  // namespace espalier
