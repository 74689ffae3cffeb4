#include <cstdint>
#include <limits>
#include <type_traits>

#include "ops/cuda/copy.h"
#include "ops/cuda/element_bits.cuh"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_cast {

// A bool's byte: any that is not 0 is true.
struct Bool {
  uint8_t byte;
};

// Truncates towards zero and clamps to the range of Integer; NaN becomes 0.
template <typename Integer>
__device__ Integer FloatToInteger(float x) {
  using Limits = std::numeric_limits<Integer>;
  // The largest integers may have no float of their own: the first one beyond them is a power of 2.
  constexpr float kBeyond = static_cast<float>(Limits::max() / 2 + 1) * 2;
  constexpr float kLowest = static_cast<float>(Limits::min());
  if (x != x) return 0;
  if (x >= kBeyond) return Limits::max();
  if (x <= kLowest) return Limits::min();
  return static_cast<Integer>(x);
}

template <typename T>
constexpr bool kIsFloat =
    std::is_same_v<T, float> || std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

template <typename From, typename To>
__device__ To Convert(From x) {
  if constexpr (std::is_same_v<From, Bool>) {
    return Convert<int32_t, To>(x.byte != 0 ? 1 : 0);
  } else if constexpr (std::is_same_v<To, Bool>) {
    if constexpr (kIsFloat<From>) {
      return Bool{static_cast<uint8_t>(ToFloat(x) != 0.0f)};
    } else {
      return Bool{static_cast<uint8_t>(x != 0)};
    }
  } else if constexpr (kIsFloat<To>) {
    if constexpr (kIsFloat<From>) {
      return FromFloat<To>(ToFloat(x));
    } else {
      return FromFloat<To>(static_cast<float>(x));
    }
  } else if constexpr (kIsFloat<From>) {
    return FloatToInteger<To>(ToFloat(x));
  } else {
    return static_cast<To>(x);
  }
}

template <typename From, typename To>
struct CastElement {
  const From* x;
  To* y;
  __device__ void operator()(int64_t i) const { y[i] = Convert<From, To>(x[i]); }
};

template <typename Function>
KernelStatus DispatchAny(DType dtype, Function function) {
  if (dtype == DType::kBool) return function(TypeTag<Bool>());
  if (IsInteger(dtype)) return DispatchAnyInteger(dtype, "cast", function);
  return DispatchFloat(dtype, "cast", function);
}

KernelStatus Run(const KernelArgs& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (!y.present()) return KernelStatus::Ok();
  if (x.dtype() == y.dtype()) return CopyWhole(x, y, args.stream, "cast");
  return DispatchAny(x.dtype(), [&](auto from) {
    return DispatchAny(y.dtype(), [&](auto to) {
      using From = typename decltype(from)::T;
      using To = typename decltype(to)::T;
      return ForEach(y.num_elements(), CastElement<From, To>{x.as<From>(), y.as<To>()},
                     StreamOf(args), "cast");
    });
  });
}

}  // namespace cuda_cast

void RegisterCastCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_cast;
  const KernelFactory factory = [](const KernelSpec&, std::string*) { return MakeKernel(Run); };
  registry.Add("cast", factory);
  registry.Add("cast_grad", factory);
}

}  // namespace espalier
