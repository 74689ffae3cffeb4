// Norms over the rows of x, optionally after adding a residual.
#pragma once

#include <string>
#include <vector>

#include "ops/schema/op_def.h"

namespace espalier {

struct NormOp {
  std::string name;
  std::string doc;
  std::vector<Arity> parameters;  // each [E]
  bool residual = false;          // inputs x, residual; outputs norm, sum. Otherwise x; norm
};
OpDef MakeNorm(const NormOp& op);

}  // namespace espalier
