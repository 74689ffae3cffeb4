// Elementwise kernels: f is a function object on scalars, compiled into vector loops by Vectorize.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/layout/strided.h"
#include "ops/cpu/simd/vectorize.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/integer_math.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// Which element types a kernel takes, by the letters of ElementTypes (ops/operators/elementwise.h);
// bf16 and f16 come as f32.
enum class Takes { kFloats, kNumbers /* F I S */, kBools, kAll };

// Calls run(T(), g) where T is the storage type of `dtype` and g is f on such elements; for
// booleans g passes bool (any byte but 0 is true). Returns false if `takes` does not include
// `dtype`.
template <Takes takes, typename F, typename Run>
bool WithElements(DType dtype, F f, const Run& run) {
  if constexpr (takes == Takes::kBools || takes == Takes::kAll) {
    if (dtype == DType::kBool) {
      run(uint8_t(), [f](auto... bytes) { return f((bytes != 0)...); });
      return true;
    }
  }
  if constexpr (takes == Takes::kNumbers || takes == Takes::kAll) {
    switch (dtype) {
      case DType::kI32:
        run(int32_t(), f);
        return true;
      case DType::kI64:
        run(int64_t(), f);
        return true;
      case DType::kI8:
        run(int8_t(), f);
        return true;
      case DType::kU8:
        run(uint8_t(), f);
        return true;
      default:
        break;
    }
  }
  if constexpr (takes != Takes::kBools) {
    if (dtype == DType::kF32) {
      run(float(), f);
      return true;
    }
  }
  return false;
}

inline KernelStatus UnsupportedType(const std::string& op, DType dtype) {
  return KernelStatus::Error(op + ": element type " + Name(dtype) + " is not supported on the CPU");
}

// Storage type of results: booleans as bytes, others as the operands.
template <typename T, typename Result>
struct StoredAs {
  static_assert(std::is_floating_point_v<T> == std::is_floating_point_v<Result>);
  using Type = T;
};
template <typename T>
struct StoredAs<T, bool> {
  using Type = uint8_t;
};
template <typename T, typename Result>
using Stored = typename StoredAs<T, Result>::Type;

// A function that is fast only for |first argument| <= kLimit; Exact handles the others.
template <typename F>
concept Limited = requires {
  F::kLimit;
};

inline bool AllWithin(float limit, const float* x, int64_t n) {
  return Vectorize(
      [](float limit, const float* x, int64_t n) {
        int32_t outside = 0;
#pragma omp simd reduction(+ : outside)
        for (int64_t i = 0; i < n; ++i) outside += !(x[i] <= limit && x[i] >= -limit);
        return outside == 0;
      },
      limit, x, n);
}

// out[i] = f(x[i]) over n elements; out may alias x.
template <typename F, typename X, typename Y>
void MapUnary(F f, const X* x, Y* out, int64_t n) {
  ParallelFor(n, 1, [&](int64_t begin, int64_t end) {
    if constexpr (Limited<F>) {
      if (!AllWithin(F::kLimit, x + begin, end - begin)) {
        for (int64_t i = begin; i < end; ++i) out[i] = f.Exact(x[i]);
        return;
      }
    }
    Vectorize(
        [](F f, const X* x, Y* out, int64_t n) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) out[i] = f(x[i]);
        },
        f, x + begin, out + begin, end - begin);
  });
}

// out[i] = f(a[i * a_stride], b[i * b_stride]); strides are 0 or 1. Runs in the calling thread.
template <typename T, typename Y, typename F>
void MapBinaryRow(F f, const T* a, int64_t a_stride, const T* b, int64_t b_stride, Y* out,
                  int64_t n) {
  if (a_stride == 1 && b_stride == 1) {
    Vectorize(
        [](F f, const T* a, const T* b, Y* out, int64_t n) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
        },
        f, a, b, out, n);
  } else if (b_stride == 1) {
    Vectorize(
        [](F f, T a, const T* b, Y* out, int64_t n) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) out[i] = f(a, b[i]);
        },
        f, *a, b, out, n);
  } else if (a_stride == 1) {
    Vectorize(
        [](F f, const T* a, T b, Y* out, int64_t n) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) out[i] = f(a[i], b);
        },
        f, a, *b, out, n);
  } else {
    const Y value = f(*a, *b);
    for (int64_t i = 0; i < n; ++i) out[i] = value;
  }
}

// out[i] = f(a[i], b[i]) over n elements; out may alias an input.
template <typename T, typename F>
void MapBinary(F f, const T* a, const T* b, T* out, int64_t n) {
  ParallelFor(n, 1, [&](int64_t begin, int64_t end) {
    if constexpr (Limited<F>) {
      if (!AllWithin(F::kLimit, a + begin, end - begin)) {
        for (int64_t i = begin; i < end; ++i) out[i] = f.Exact(a[i], b[i]);
        return;
      }
    }
    MapBinaryRow(f, a + begin, 1, b + begin, 1, out + begin, end - begin);
  });
}

// y = f(x)
template <Takes takes, typename F>
KernelStatus RunUnary(const std::string& op, F f, const TensorView& x, const TensorView& y) {
  const bool taken = WithElements<takes>(x.dtype(), f, [&](auto element, auto g) {
    using T = decltype(element);
    using Y = Stored<T, decltype(g(element))>;
    MapUnary(g, x.as<T>(), y.as<Y>(), y.num_elements());
  });
  return taken ? KernelStatus::Ok() : UnsupportedType(op, x.dtype());
}

// Adds kernel `name`: y = f(x), f = make(attributes of the node).
template <Takes takes = Takes::kFloats, typename Make>
void AddUnaryForward(KernelRegistry& registry, const std::string& name, Make make) {
  registry.Add(name, ViaF32([=](const KernelSpec& spec, std::string*) {
                 return MakeKernel([name, f = make(spec.attributes)](const KernelArgs& args) {
                   return RunUnary<takes>(name, f, args.inputs[0], args.outputs[0]);
                 });
               }));
}

// Adds kernel `name`_grad: dx = gradient(saved, dy), gradient = make(attributes of the node), where
// `saved` is x or y, as the operator's definition says; gradient(dy) if it names neither.
template <typename Make>
void AddUnaryGradientWith(KernelRegistry& registry, const std::string& name, Make make) {
  registry.Add(name + "_grad", ViaF32([make](const KernelSpec& spec, std::string*) {
                 return MakeKernel([gradient = make(spec.attributes)](const KernelArgs& args) {
                   const TensorView& dx = args.outputs[0];
                   const float* first = args.inputs[0].as<float>();
                   if constexpr (std::is_invocable_v<decltype(gradient), float>) {
                     MapUnary(gradient, first, dx.as<float>(), dx.num_elements());
                   } else {
                     MapBinary(gradient, first, args.inputs[1].as<float>(), dx.as<float>(),
                               dx.num_elements());
                   }
                   return KernelStatus::Ok();
                 });
               }));
}

// Adds `name` and `name`_grad.
template <Takes takes = Takes::kFloats, typename Make, typename MakeGradient>
void AddUnaryWith(KernelRegistry& registry, const std::string& name, Make make,
                  MakeGradient make_gradient) {
  AddUnaryForward<takes>(registry, name, make);
  AddUnaryGradientWith(registry, name, make_gradient);
}

// As above, for operators without attributes.
template <Takes takes = Takes::kFloats, typename F, typename G>
void AddUnary(KernelRegistry& registry, const std::string& name, F f, G gradient) {
  AddUnaryWith<takes>(
      registry, name, [f](const Attributes&) { return f; },
      [gradient](const Attributes&) { return gradient; });
}

}  // namespace espalier
