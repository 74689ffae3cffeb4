// Runs a case on two backends, forward and backward, and compares all operands that were written.
#pragma once

#include <string>
#include <vector>

#include "ops/schema/registry.h"
#include "tests/gpu/backend.h"
#include "tests/gpu/cases.h"

namespace espalier::gpu_check {

struct Verdict {
  std::string label;    // "linear_grad bf16 [64, 96] (3 rows)"
  std::string failure;  // empty: passed
  double worst = 0;     // largest error, as a fraction of the tolerance
};

// Returns a verdict for the forward operator and, if the case includes it, for the gradient. Runs
// `checked`, the backend under test, twice: its results must repeat bit for bit.
std::vector<Verdict> RunCase(const Case& c, const OpRegistry& ops, Backend& reference,
                             Backend& checked);

// Returns a matrix packed as in ops/kernel/packed_weights.h: random numbers, scales about 1 / 64.
void FillPacked(int bits, int64_t in, uint64_t seed, HostTensor* tensor);

}  // namespace espalier::gpu_check
