// Runs a case on two backends, forward and backward, and compares all that was written.
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

// One verdict for the forward operator and one for its gradient, if the case asks for it. `checked`
// is the backend under test, run twice: its results must be the same bits.
std::vector<Verdict> RunCase(const Case& c, const OpRegistry& ops, Backend& reference,
                             Backend& checked);

// A matrix as ops/kernel/packed_weights.h lays it out: numbers at random, scales about 1 / 64.
void FillPacked(int bits, int64_t in, uint64_t seed, HostTensor* tensor);

}  // namespace espalier::gpu_check
