// Elementwise kernels: f is a function object on scalars, compiled into vector loops by Vectorize.
#pragma once

#include <string>

#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/strided.h"
#include "ops/cpu/vectorize.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// out[i] = f(x[i]) over n elements; out may be x.
template <typename F>
void MapUnary(F f, const float* x, float* out, int64_t n) {
  ParallelFor(n, 1, [&](int64_t begin, int64_t end) {
    Vectorize(
        [](F f, const float* x, float* out, int64_t n) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) out[i] = f(x[i]);
        },
        f, x + begin, out + begin, end - begin);
  });
}

// out[i] = f(a[i * a_stride], b[i * b_stride]); strides are 0 or 1. Runs in the calling thread.
template <typename T, typename F>
void MapBinaryRow(F f, const T* a, int64_t a_stride, const T* b, int64_t b_stride, T* out,
                  int64_t n) {
  if (a_stride == 1 && b_stride == 1) {
    Vectorize(
        [](F f, const T* a, const T* b, T* out, int64_t n) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
        },
        f, a, b, out, n);
  } else if (b_stride == 1) {
    Vectorize(
        [](F f, T a, const T* b, T* out, int64_t n) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) out[i] = f(a, b[i]);
        },
        f, *a, b, out, n);
  } else if (a_stride == 1) {
    Vectorize(
        [](F f, const T* a, T b, T* out, int64_t n) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) out[i] = f(a[i], b);
        },
        f, a, *b, out, n);
  } else {
    const T value = f(*a, *b);
    for (int64_t i = 0; i < n; ++i) out[i] = value;
  }
}

// out[i] = f(a[i], b[i]) over n elements; out may be one of the inputs.
template <typename T, typename F>
void MapBinary(F f, const T* a, const T* b, T* out, int64_t n) {
  ParallelFor(n, 1, [&](int64_t begin, int64_t end) {
    MapBinaryRow(f, a + begin, 1, b + begin, 1, out + begin, end - begin);
  });
}

// Kernels `name`, y = f(x), and `name`_grad, dx = gradient(saved, dy), where `saved` is x or y,
// whichever the operator's definition names.
template <typename F, typename G>
void AddUnary(KernelRegistry& registry, const std::string& name, F f, G gradient) {
  registry.Add(name, ViaF32([f](const KernelSpec&, std::string*) {
                 return MakeKernel([f](const KernelArgs& args) {
                   const TensorView& y = args.outputs[0];
                   MapUnary(f, args.inputs[0].as<float>(), y.as<float>(), y.num_elements());
                   return KernelStatus::Ok();
                 });
               }));
  registry.Add(name + "_grad", ViaF32([gradient](const KernelSpec&, std::string*) {
                 return MakeKernel([gradient](const KernelArgs& args) {
                   const TensorView& dx = args.outputs[0];
                   MapBinary(gradient, args.inputs[0].as<float>(), args.inputs[1].as<float>(),
                             dx.as<float>(), dx.num_elements());
                   return KernelStatus::Ok();
                 });
               }));
}

}  // namespace espalier
