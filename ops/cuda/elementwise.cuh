// Elementwise kernels: a formula on scalars makes a kernel for all element types that it takes.
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/kernel/integer_math.h"

namespace espalier {

// Which element types a kernel takes, by the letters of ElementTypes (ops/operators/elementwise.h).
enum class Takes { kFloats /* F */, kNumbers /* F I S */, kBools, kAll };

// A boolean's byte: any that is not 0 is true.
struct Flag {
  uint8_t byte;
};

// The argument type of a formula: f32 for floating-point types, bool, integers unchanged.
template <typename T>
using Seen = std::conditional_t<std::is_integral_v<T>, T,
                                std::conditional_t<std::is_same_v<T, Flag>, bool, float>>;

template <typename T>
__device__ __forceinline__ Seen<T> LoadElement(T x) {
  if constexpr (std::is_integral_v<T>) {
    return x;
  } else if constexpr (std::is_same_v<T, Flag>) {
    return x.byte != 0;
  } else {
    return ToFloat(x);
  }
}

template <typename T, typename Value>
__device__ __forceinline__ T StoreElement(Value value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(value);
  } else if constexpr (std::is_same_v<T, Flag>) {
    return Flag{static_cast<uint8_t>(value ? 1 : 0)};
  } else {
    return FromFloat<T>(value);
  }
}

// Storage type of results: booleans as bytes, others as the operands.
template <typename T, typename Result>
using Stored = std::conditional_t<std::is_same_v<Result, bool>, Flag, T>;

// Calls function(TypeTag<T>()) with the storage type of elements.
template <Takes takes, typename Function>
KernelStatus DispatchElements(DType dtype, const char* op, Function function) {
  if constexpr (takes == Takes::kBools || takes == Takes::kAll) {
    if (dtype == DType::kBool) return function(TypeTag<Flag>());
  }
  if constexpr (takes == Takes::kNumbers || takes == Takes::kAll) {
    switch (dtype) {
      case DType::kI32:
        return function(TypeTag<int32_t>());
      case DType::kI64:
        return function(TypeTag<int64_t>());
      case DType::kI8:
        return function(TypeTag<int8_t>());
      case DType::kU8:
        return function(TypeTag<uint8_t>());
      default:
        break;
    }
  }
  if constexpr (takes != Takes::kBools) return DispatchFloat(dtype, op, function);
  return UnsupportedType(op, dtype);
}

// Returns false and sets *refusal where DispatchElements would fail.
template <Takes takes>
bool TakesElements(DType dtype, std::string* refusal) {
  const bool taken =
      IsFloat(dtype)
          ? takes != Takes::kBools
          : (IsInteger(dtype) && (takes == Takes::kNumbers || takes == Takes::kAll)) ||
                (dtype == DType::kBool && (takes == Takes::kBools || takes == Takes::kAll));
  return taken || TakesType(dtype, {}, refusal);
}

template <typename X, typename Y, typename F>
struct MapUnary {
  const X* x;
  Y* y;
  F f;
  __device__ void operator()(int64_t i) const { y[i] = StoreElement<Y>(f(LoadElement(x[i]))); }
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

template <Takes takes = Takes::kFloats, typename F>
KernelStatus RunUnary(const KernelArgs& args, F f, const char* op) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (!y.present()) return KernelStatus::Ok();
  return DispatchElements<takes>(x.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::T;
    using Y = Stored<T, std::invoke_result_t<F, Seen<T>>>;
    return ForEach(y.num_elements(), MapUnary<T, Y, F>{x.as<T>(), y.as<Y>(), f}, StreamOf(args),
                   op);
  });
}

// out = f(saved, dy): inputs 0 and 1; or out = f(dy): input 0.
template <typename F>
KernelStatus RunUnaryGradient(const KernelArgs& args, F f, const char* op) {
  const TensorView &first = args.inputs[0], &dx = args.outputs[0];
  if (!dx.present()) return KernelStatus::Ok();
  return DispatchFloat(dx.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::T;
    if constexpr (std::is_invocable_v<F, float>) {
      return ForEach(dx.num_elements(), MapUnary<T, T, F>{first.as<T>(), dx.as<T>(), f},
                     StreamOf(args), op);
    } else {
      return ForEach(dx.num_elements(),
                     MapBinary<T, F>{first.as<T>(), args.inputs[1].as<T>(), dx.as<T>(), f},
                     StreamOf(args), op);
    }
  });
}

// Adds kernel `name`: y = f(x), f = make(attributes of the node). `name` must be a literal, here
// and below.
template <Takes takes = Takes::kFloats, typename Make>
void AddUnaryForward(KernelRegistry& registry, const char* name, Make make) {
  registry.Add(name, [=](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesElements<takes>(spec.inputs[0].dtype, refusal)) return nullptr;
    return MakeKernel([name, f = make(spec.attributes)](const KernelArgs& args) {
      return RunUnary<takes>(args, f, name);
    });
  });
}

// Adds kernel `name`_grad: dx = gradient(saved, dy), gradient = make(attributes), where `saved` is
// x or y, as the operator's definition says; gradient(dy) if it names neither.
template <typename Make>
void AddUnaryGradientWith(KernelRegistry& registry, const char* name, Make make) {
  registry.Add(std::string(name) + "_grad",
               [=](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 return MakeKernel([name, f = make(spec.attributes)](const KernelArgs& args) {
                   return RunUnaryGradient(args, f, name);
                 });
               });
}

// Adds `name` and `name`_grad.
template <Takes takes = Takes::kFloats, typename Make, typename MakeGradient>
void AddUnaryWith(KernelRegistry& registry, const char* name, Make make,
                  MakeGradient make_gradient) {
  AddUnaryForward<takes>(registry, name, make);
  AddUnaryGradientWith(registry, name, make_gradient);
}

// As above, for operators without attributes.
template <Takes takes = Takes::kFloats, typename F, typename G>
void AddUnary(KernelRegistry& registry, const char* name, F f, G gradient) {
  AddUnaryWith<takes>(
      registry, name, [f](const Attributes&) { return f; },
      [gradient](const Attributes&) { return gradient; });
}

// The gradient of functions that are constant almost everywhere.
struct ZeroGradient {
  __device__ float operator()(float) const { return 0.0f; }
};

}  // namespace espalier
