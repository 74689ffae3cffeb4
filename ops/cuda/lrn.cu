#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_lrn {

struct Problem {
  int64_t channels, spatial;
  int64_t before, after;  // channels of a window beside its own
  float scale, beta, bias;

  static Problem Of(const Attributes& a, const Dims& x) {
    const int64_t size = a.Int("size");
    Problem p{x[1],
              1,
              (size - 1) / 2,
              size / 2,
              static_cast<float>(a.Float("alpha") / static_cast<double>(size)),
              static_cast<float>(a.Float("beta")),
              static_cast<float>(a.Float("bias"))};
    for (size_t d = 2; d < x.size(); ++d) p.spatial *= x[d];
    return p;
  }

  __device__ int64_t Channel(int64_t i) const { return i / spatial % channels; }
  // value(j) summed over channels c - low to c + high at the position of element i.
  template <typename Value>
  __device__ float SumAround(int64_t i, int64_t low, int64_t high, const Value& value) const {
    const int64_t c = Channel(i), first = ::max(int64_t{0}, c - low),
                  last = ::min(channels - 1, c + high);
    float sum = 0;
    for (int64_t k = first; k <= last; ++k) sum += value(i + (k - c) * spatial);
    return sum;
  }
  template <typename T>
  __device__ float Base(const T* x, int64_t i) const {
    return bias + scale * SumAround(i, before, after, [x](int64_t j) {
                    const float value = ToFloat(x[j]);
                    return value * value;
                  });
  }
};

template <typename T>
struct Forward {
  Problem p;
  const T* x;
  T* y;
  __device__ void operator()(int64_t i) const {
    y[i] = FromFloat<T>(ToFloat(x[i]) * powf(p.Base(x, i), -p.beta));
  }
};

// bases, and the summands of the gradient: dy x base^(-beta - 1).
template <typename T>
struct Terms {
  Problem p;
  const T* x;
  const T* dy;
  float* bases;
  float* terms;
  __device__ void operator()(int64_t i) const {
    const float base = p.Base(x, i);
    bases[i] = base;
    terms[i] = ToFloat(dy[i]) * ToFloat(x[i]) * powf(base, -p.beta - 1);
  }
};

// dx = dy base^-beta - 2 scale beta x * the terms of the channels in whose windows x lies
template <typename T>
struct Backward {
  Problem p;
  const T* x;
  const T* dy;
  const float* bases;
  const float* terms;
  T* dx;
  __device__ void operator()(int64_t i) const {
    const float* all = terms;
    const float sum = p.SumAround(i, p.after, p.before, [all](int64_t j) { return all[j]; });
    dx[i] = FromFloat<T>(ToFloat(dy[i]) * powf(bases[i], -p.beta) -
                         2.0f * p.scale * p.beta * ToFloat(x[i]) * sum);
  }
};

}  // namespace cuda_lrn

void RegisterLrnCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_lrn;
  registry.Add("lrn", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    return MakeKernel([a = spec.attributes](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      return DispatchFloat(x.dtype(), "lrn", [&](auto type) {
        using T = typename decltype(type)::T;
        return ForEach(y.num_elements(), Forward<T>{Problem::Of(a, x.dims()), x.as<T>(), y.as<T>()},
                       StreamOf(args), "lrn");
      });
    });
  });
  // x, dy -> dx
  registry.Add(
      "lrn_grad", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        WorkspaceLayout layout;
        const size_t bytes = static_cast<size_t>(spec.inputs[0].num_elements()) * sizeof(float);
        const size_t bases_at = layout.Add(bytes), terms_at = layout.Add(bytes);
        return MakeKernel(
            [a = spec.attributes, bases_at, terms_at](const KernelArgs& args) {
              const TensorView &x = args.inputs[0], &dy = args.inputs[1], &dx = args.outputs[0];
              if (!dx.present()) return KernelStatus::Ok();
              const Problem p = Problem::Of(a, x.dims());
              float *bases = WorkspaceAt<float>(args, bases_at),
                    *terms = WorkspaceAt<float>(args, terms_at);
              return DispatchFloat(x.dtype(), "lrn_grad", [&](auto type) {
                using T = typename decltype(type)::T;
                ESPALIER_KERNEL_RETURN_IF_ERROR(
                    ForEach(x.num_elements(), Terms<T>{p, x.as<T>(), dy.as<T>(), bases, terms},
                            StreamOf(args), "lrn_grad"));
                return ForEach(x.num_elements(),
                               Backward<T>{p, x.as<T>(), dy.as<T>(), bases, terms, dx.as<T>()},
                               StreamOf(args), "lrn_grad");
              });
            },
            layout.bytes());
      });
}

}  // namespace espalier
