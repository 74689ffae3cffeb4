// Pooling over NCHW planes, with PyTorch's rules for ties, borders and divisors. The gradient is
// gathered per element of x, windows in row-major order: no atomics.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/cuda/register.h"

namespace espalier {
namespace {

struct Problem {
  bool max, include_pad;
  int64_t kernel[2], stride[2], pad[4];
  int64_t x_size[2], y_size[2];

  __device__ int64_t Begin(int d, int64_t i) const { return i * stride[d] - pad[d]; }
  // The part of window i along dimension d that lies in the image.
  __device__ int64_t First(int d, int64_t i) const { return ::max(Begin(d, i), int64_t{0}); }
  __device__ int64_t End(int d, int64_t i) const {
    return ::min(Begin(d, i) + kernel[d], x_size[d]);
  }
  // The average's divisor; what ceil_mode adds beyond the pads does not count.
  __device__ float Cells(int64_t i, int64_t j) const {
    if (!include_pad) {
      return static_cast<float>((End(0, i) - First(0, i)) * (End(1, j) - First(1, j)));
    }
    const int64_t height = ::min(Begin(0, i) + kernel[0], x_size[0] + pad[2]) - Begin(0, i);
    const int64_t width = ::min(Begin(1, j) + kernel[1], x_size[1] + pad[3]) - Begin(1, j);
    return static_cast<float>(height * width);
  }
  // Windows that hold coordinate h of dimension d: [FirstWindow, EndWindow).
  __device__ int64_t FirstWindow(int d, int64_t h) const {
    const int64_t past = h + pad[d] - kernel[d];
    return past < 0 ? 0 : past / stride[d] + 1;
  }
  __device__ int64_t EndWindow(int d, int64_t h) const {
    return ::min((h + pad[d]) / stride[d] + 1, y_size[d]);
  }
};

Problem Describe(const Attributes& a, const Dims& x, const Dims& y) {
  Problem p;
  p.max = a.String("kind") == "max";
  p.include_pad = a.Bool("count_include_pad");
  const std::vector<int64_t> kernel = a.Ints("kernel"), strides = a.Ints("strides", {1, 1}),
                             pads = a.Ints("pads", {0, 0, 0, 0});
  for (int d = 0; d < 2; ++d) {
    p.kernel[d] = kernel[d];
    p.stride[d] = strides[d];
    p.x_size[d] = x[2 + d];
    p.y_size[d] = y[2 + d];
  }
  for (int i = 0; i < 4; ++i) p.pad[i] = pads[i];
  return p;
}

// Index in the plane of the first maximum of window (i, j) in row-major order; a NaN wins.
template <typename T>
__device__ int64_t ArgMax(const Problem& p, const T* plane, int64_t i, int64_t j) {
  int64_t best = p.First(0, i) * p.x_size[1] + p.First(1, j);
  float most = ToFloat(plane[best]);
  for (int64_t r = p.First(0, i); r < p.End(0, i); ++r) {
    for (int64_t c = p.First(1, j); c < p.End(1, j); ++c) {
      const float value = ToFloat(plane[r * p.x_size[1] + c]);
      if (value > most || value != value) {
        best = r * p.x_size[1] + c;
        most = value;
      }
    }
  }
  return best;
}

template <typename T>
struct Forward {
  Problem p;
  const T* x;
  T* y;
  __device__ void operator()(int64_t at) const {
    const int64_t j = at % p.y_size[1], i = at / p.y_size[1] % p.y_size[0];
    const T* plane = x + at / (p.y_size[0] * p.y_size[1]) * (p.x_size[0] * p.x_size[1]);
    if (p.max) {
      y[at] = plane[ArgMax(p, plane, i, j)];
      return;
    }
    float sum = 0;
    for (int64_t r = p.First(0, i); r < p.End(0, i); ++r) {
      for (int64_t c = p.First(1, j); c < p.End(1, j); ++c) {
        sum += ToFloat(plane[r * p.x_size[1] + c]);
      }
    }
    y[at] = FromFloat<T>(sum / p.Cells(i, j));
  }
};

// Which element of its plane each window takes.
template <typename T>
struct Choose {
  Problem p;
  const T* x;
  int64_t* chosen;
  __device__ void operator()(int64_t at) const {
    const int64_t j = at % p.y_size[1], i = at / p.y_size[1] % p.y_size[0];
    const T* plane = x + at / (p.y_size[0] * p.y_size[1]) * (p.x_size[0] * p.x_size[1]);
    chosen[at] = ArgMax(p, plane, i, j);
  }
};

template <typename T>
struct Backward {
  Problem p;
  const int64_t* chosen;  // null for averages
  const T* dy;
  T* dx;
  __device__ void operator()(int64_t at) const {
    const int64_t in_plane = at % (p.x_size[0] * p.x_size[1]);
    const int64_t w = in_plane % p.x_size[1], h = in_plane / p.x_size[1];
    const int64_t plane = at / (p.x_size[0] * p.x_size[1]) * (p.y_size[0] * p.y_size[1]);
    float sum = 0;
    for (int64_t i = p.FirstWindow(0, h); i < p.EndWindow(0, h); ++i) {
      for (int64_t j = p.FirstWindow(1, w); j < p.EndWindow(1, w); ++j) {
        const int64_t window = plane + i * p.y_size[1] + j;
        if (chosen == nullptr) {
          sum += ToFloat(dy[window]) / p.Cells(i, j);
        } else if (chosen[window] == in_plane) {
          sum += ToFloat(dy[window]);
        }
      }
    }
    dx[at] = FromFloat<T>(sum);
  }
};

}  // namespace

void RegisterPool2dCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("pool2d",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
                   const TensorView &x = args.inputs[0], &y = args.outputs[0];
                   return DispatchFloat(x.dtype(), "pool2d", [&](auto type) {
                     using T = typename decltype(type)::T;
                     return ForEach(
                         y.num_elements(),
                         Forward<T>{Describe(attributes, x.dims(), y.dims()), x.as<T>(), y.as<T>()},
                         StreamOf(args), "pool2d");
                   });
                 });
               });
  // x, dy -> dx
  registry.Add(
      "pool2d_grad", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        const bool max = spec.attributes.String("kind") == "max";
        return MakeKernel(
            [attributes = spec.attributes](const KernelArgs& args) {
              const TensorView &x = args.inputs[0], &dy = args.inputs[1], &dx = args.outputs[0];
              if (!dx.present()) return KernelStatus::Ok();
              const Problem p = Describe(attributes, x.dims(), dy.dims());
              int64_t* chosen = p.max ? static_cast<int64_t*>(args.workspace) : nullptr;
              return DispatchFloat(x.dtype(), "pool2d_grad", [&](auto type) {
                using T = typename decltype(type)::T;
                if (p.max) {
                  ESPALIER_KERNEL_RETURN_IF_ERROR(ForEach(dy.num_elements(),
                                                          Choose<T>{p, x.as<T>(), chosen},
                                                          StreamOf(args), "pool2d_grad"));
                }
                return ForEach(dx.num_elements(), Backward<T>{p, chosen, dy.as<T>(), dx.as<T>()},
                               StreamOf(args), "pool2d_grad");
              });
            },
            max ? spec.inputs[1].num_elements() * sizeof(int64_t) : 0);
      });
}

}  // namespace espalier
