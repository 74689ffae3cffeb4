// Reductions along some dimensions.
#pragma once

#include <string>
#include <vector>

#include "ops/operators/elementwise.h"
#include "ops/schema/op_def.h"

namespace espalier {

struct ReductionOp {
  std::string name;
  std::string doc;
  std::vector<DType> types;
  bool is_sum = false;       // a sum over elements: reduced dimensions can be split too
  bool saves_input = false;  // the gradient reads x
  bool saves_output = false;
  Precision precision = Precision::kF32;  // sums and products overflow in 16 bits
};

// y = f(all x along axes), with attributes `axes` (empty: all) and `keepdims`. Kept dimensions are
// split as usual; splitting a reduced dimension of a sum leaves partial sums.
OpDef MakeReduction(const ReductionOp& op);

// The number of elements that are reduced to one element of the output.
int64_t ReducedCount(const NodeTypes& types);

}  // namespace espalier
