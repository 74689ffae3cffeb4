// For tests: compares two graphs and their gradients on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "ops/cpu/register_all.h"
#include "ops/graph/graph.h"
#include "ops/kernel/kernel.h"
#include "ops/operators/register_all.h"
#include "ops/rewrite/proof.h"

namespace espalier {

inline const OpRegistry& Operators() {
  static const auto* const kRegistry = [] {
    auto* made = new OpRegistry;
    RegisterAllOperators(*made);
    return made;
  }();
  return *kRegistry;
}

inline const KernelRegistry& Kernels() {
  static const auto* const kRegistry = [] {
    auto* made = new KernelRegistry;
    RegisterCpuKernels(*made);
    return made;
  }();
  return *kRegistry;
}

// Compares outputs and gradients, to `tolerance` of the largest element of each.
inline void ExpectSame(const Graph& before, const Graph& after, int seed, double tolerance = 1e-5) {
  EXPECT_EQ(CheckSame(Operators(), Kernels(), before, after, seed, tolerance), absl::OkStatus())
      << "seed " << seed;
}

}  // namespace espalier
