// Elementwise kernels: a formula on f32 scalars makes a kernel for f32, bf16 and f16.
#pragma once

#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/cuda/register.h"

namespace espalier {

template <typename T, typename F>
struct MapUnary {
  const T* x;
  T* y;
  F f;
  __device__ void operator()(int64_t i) const { y[i] = FromFloat<T>(f(ToFloat(x[i]))); }
};

template <typename T, typename F>
struct MapBinary {
  const T* a;
  const T* b;
  T* y;
  F f;
  __device__ void operator()(int64_t i) const {
    y[i] = FromFloat<T>(f(ToFloat(a[i]), ToFloat(b[i])));
  }
};

template <typename F>
KernelStatus RunUnary(const KernelArgs& args, F f, const char* op) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (!y.present()) return KernelStatus::Ok();
  return DispatchFloat(y.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(y.num_elements(), MapUnary<T, F>{x.as<T>(), y.as<T>(), f}, StreamOf(args), op);
  });
}

// out = f(saved, dy): inputs 0 and 1.
template <typename F>
KernelStatus RunUnaryGradient(const KernelArgs& args, F f, const char* op) {
  const TensorView &saved = args.inputs[0], &dy = args.inputs[1], &dx = args.outputs[0];
  if (!dx.present()) return KernelStatus::Ok();
  return DispatchFloat(dx.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(dx.num_elements(), MapBinary<T, F>{saved.as<T>(), dy.as<T>(), dx.as<T>(), f},
                   StreamOf(args), op);
  });
}

// Kernels `name`, y = f(x), and `name`_grad, dx = gradient(saved, dy), where `saved` is x or y,
// whichever the operator's definition names. `name` must be a literal.
template <typename F, typename G>
void AddUnary(KernelRegistry& registry, const char* name, F f, G gradient) {
  registry.Add(name, [=](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    return MakeKernel([=](const KernelArgs& args) { return RunUnary(args, f, name); });
  });
  registry.Add(std::string(name) + "_grad",
               [=](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 return MakeKernel([=](const KernelArgs& args) {
                   return RunUnaryGradient(args, gradient, name);
                 });
               });
}

}  // namespace espalier
