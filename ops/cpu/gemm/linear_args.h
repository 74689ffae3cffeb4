// Arguments of BatchInvariantLinear from the operands of one or several instructions of linear, or
// of quantized_linear with unpacked weights, that share x (KernelRegistry::TakesSeveral).
#pragma once

#include <cstddef>
#include <vector>

#include "ops/cpu/gemm/batch_invariant_linear.h"
#include "ops/cpu/layout/rows.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// Inputs: x, weight[out, in] and optionally bias[out], repeated for each output.
inline std::vector<BatchInvariantLinearArgs> ProductsOf(const KernelArgs& args) {
  const size_t each = args.inputs.size() / args.outputs.size();
  std::vector<BatchInvariantLinearArgs> products;
  for (size_t i = 0; i < args.outputs.size(); ++i) {
    const TensorView *const of = &args.inputs[i * each], &x = of[0], &weight = of[1];
    products.push_back({x.dtype(), RowsOf(x.dims()), weight.dims()[1], weight.dims()[0], x.data,
                        weight.data, each > 2 ? of[2].data : nullptr, args.outputs[i].data,
                        weight.dtype()});
  }
  return products;
}

}  // namespace espalier
