// Minimum and maximum: reduce_min and reduce_max, and the comparison of arg_min and arg_max.
#pragma once

#include <limits>

#include "ops/cuda/reduce_generic.cuh"

namespace espalier {

// Returns whether b replaces a; NaN replaces every number.
template <bool largest, typename V>
__device__ __forceinline__ bool Beyond(V b, V a) {
  return (largest ? b > a : b < a) || (b != b && a == a);
}

// Value is float or int64_t.
template <typename Value, bool largest>
struct ExtremeOp {
  using Type = Value;
  static __device__ __forceinline__ Value Identity() {
    using Limits = std::numeric_limits<Value>;
    if constexpr (Limits::has_infinity) {
      return largest ? -Limits::infinity() : Limits::infinity();
    } else {
      return largest ? Limits::lowest() : Limits::max();
    }
  }
  static __device__ __forceinline__ Value Apply(Value a, Value b) {
    return Beyond<largest>(b, a) ? b : a;
  }
};

// A bool's byte: any that is not 0 is true.
struct TruthByte {
  uint8_t byte;
};

template <typename T>
struct NumberOf {
  const T* x;
  __device__ auto operator()(int64_t i) const {
    if constexpr (std::is_same_v<T, TruthByte>) {
      return static_cast<int64_t>(x[i].byte != 0);
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<int64_t>(x[i]);
    } else {
      return ToFloat(x[i]);
    }
  }
};
template <typename T>
using NumberType =
    std::conditional_t<std::is_same_v<T, TruthByte> || std::is_integral_v<T>, int64_t, float>;

// The identity may be out of range for narrow integers: clamps it.
template <typename T>
struct StoreNumber {
  T* y;
  template <typename V>
  __device__ void operator()(int64_t o, V value) const {
    if constexpr (std::is_same_v<T, TruthByte>) {
      y[o].byte = value > 0;
    } else if constexpr (std::is_integral_v<T>) {
      using Limits = std::numeric_limits<T>;
      constexpr int64_t kLow = Limits::lowest(), kHigh = Limits::max();
      y[o] = static_cast<T>(value < kLow ? kLow : (value > kHigh ? kHigh : value));
    } else {
      y[o] = FromFloat<T>(value);
    }
  }
};

template <typename V>
struct StoreRaw {
  V* y;
  __device__ void operator()(int64_t o, V value) const { y[o] = value; }
};

// Calls function with the C++ type of any element type.
template <typename Function>
KernelStatus DispatchAll(DType dtype, const char* op, Function function) {
  if (dtype == DType::kBool) return function(TypeTag<TruthByte>());
  if (IsInteger(dtype)) return DispatchAnyInteger(dtype, op, function);
  return DispatchFloat(dtype, op, function);
}

template <typename T>
struct TieOf {
  const T* x;
  const T* y;
  BroadcastIndex index;
  __device__ float operator()(int64_t i) const {
    return ToFloat(x[i]) == ToFloat(y[index(i)]) ? 1.0f : 0.0f;
  }
};

template <typename T>
struct ShareElement {
  const T* x;
  const T* y;
  const T* dy;
  const float* ties;
  T* dx;
  BroadcastIndex index;
  __device__ void operator()(int64_t i) const {
    const int64_t o = index(i);
    const bool tie = ToFloat(x[i]) == ToFloat(y[o]);
    dx[i] = FromFloat<T>(tie ? ToFloat(dy[o]) / ties[o] : 0.0f);
  }
};

// Adds kernels `name` and `gradient` of reduce_min or reduce_max; both must be literals.
template <bool largest>
void AddExtreme(KernelRegistry& registry, const char* name, const char* gradient) {
  registry.Add(name, [=](const KernelSpec& spec, std::string*) -> std::unique_ptr<Kernel> {
    // The workspace suits the wider of the two types of values.
    const ReductionPlan plan =
        ReductionPlan::Make<ExtremeOp<int64_t, largest>>(spec, spec.inputs[0].dims);
    return MakeKernel(
        [=](const KernelArgs& args) {
          const TensorView &x = args.inputs[0], &y = args.outputs[0];
          return DispatchAll(x.dtype(), name, [&](auto type) {
            using T = typename decltype(type)::T;
            return plan.Run<ExtremeOp<NumberType<T>, largest>>(
                x.dims(), NumberOf<T>{x.as<T>()}, StoreNumber<T>{y.as<T>()}, args, name);
          });
        },
        plan.layout.bytes());
  });
  // x, y, dy: equal ones share the gradient
  registry.Add(
      gradient, [=](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        const ReductionPlan plan =
            ReductionPlan::Make<SumOp>(spec, spec.inputs[0].dims, sizeof(float));
        return MakeKernel(
            [=](const KernelArgs& args) {
              const TensorView &x = args.inputs[0], &y = args.inputs[1], &dx = args.outputs[0];
              if (!dx.present()) return KernelStatus::Ok();
              float* ties = WorkspaceAt<float>(args, plan.extra);
              const BroadcastIndex index = plan.Index(x.dims());
              return DispatchFloat(x.dtype(), gradient, [&](auto type) {
                using T = typename decltype(type)::T;
                ESPALIER_KERNEL_RETURN_IF_ERROR(
                    plan.Run<SumOp>(x.dims(), TieOf<T>{x.as<T>(), y.as<T>(), index},
                                    StoreRaw<float>{ties}, args, gradient));
                return ForEach(dx.num_elements(),
                               ShareElement<T>{x.as<T>(), y.as<T>(), args.inputs[2].as<T>(), ties,
                                               dx.as<T>(), index},
                               StreamOf(args), gradient);
              });
            },
            plan.layout.bytes());
      });
}

}  // namespace espalier
