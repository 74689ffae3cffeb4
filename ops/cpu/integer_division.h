// Checks of operators that divide integers.
#pragma once

#include <algorithm>
#include <atomic>
#include <string>

#include "ops/cpu/binary.h"

namespace espalier {

// Returns an error that names `op` if an element of the integer divisor b is zero.
inline KernelStatus CheckDivisor(const std::string& op, const KernelArgs& args) {
  const TensorView& b = args.inputs[1];
  if (IsFloat(b.dtype()) || args.outputs[0].num_elements() == 0) return KernelStatus::Ok();
  std::atomic<bool> zero = false;
  WithElements<Takes::kNumbers>(
      b.dtype(), [](auto) {},
      [&](auto element, auto) {
        using T = decltype(element);
        const T* divisor = b.as<T>();
        ParallelFor(b.num_elements(), 1, [&](int64_t begin, int64_t end) {
          if (std::find(divisor + begin, divisor + end, T(0)) != divisor + end) zero = true;
        });
      });
  return zero ? KernelStatus::Error(op + ": an integer is divided by zero (input 'b')")
              : KernelStatus::Ok();
}

}  // namespace espalier
