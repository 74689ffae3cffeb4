// Shared by the operators that make one element of all along some dimensions.
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
  bool is_sum = false;       // of something of each element: reduced dimensions may be split too
  bool saves_input = false;  // what the gradient reads
  bool saves_output = false;
  Precision precision = Precision::kF32;  // sums and products overflow
};

// y = f(all x along axes), with attributes `axes` (empty: all) and `keepdims`. Kept dimensions are
// split as usual; splitting a reduced one of a sum leaves partial sums.
OpDef MakeReduction(const ReductionOp& op);

// Number of elements that each element of the output is the sum of.
int64_t ReducedCount(const NodeTypes& types);

}  // namespace espalier
