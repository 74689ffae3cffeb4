// dx[o, r, :] = sum of dy[o, j, :] over the j with index[j] == r, in the order of j: the gradient
// of a lookup. Indices are sorted (stably) and each run of equal ones is added up by one block,
// without atomics.
#pragma once

#include "ops/cuda/runtime/device_fault.h"
#include "ops/cuda/labels.cuh"
#include "ops/cuda/register.h"

namespace espalier {

struct ScatterProblem {
  Integers indices;
  int64_t count = 0;   // of indices
  int64_t outer = 1;   // dx is [outer, rows, inner], dy is [outer, count / repeat, inner]
  int64_t repeat = 1;  // index j adds row j / repeat of dy
  const float* weights = nullptr;  // one per index that its row is multiplied by; null: 1
  int64_t rows = 0;
  int64_t inner = 1;
  int64_t offset = 0;     // index of row 0; indices of other shards' rows add nothing
  int64_t limit = 0;      // indices lie below it
  bool from_end = false;  // negative indices count from the end
  bool skips = false;     // indices equal to `skipped` add nothing, and are no fault
  int64_t skipped = -1;
  FaultKind fault = FaultKind::kGatherIndex;
};

class RowScatter {
 public:
  // Null with *refusal set if the problem is too large or there is no device to ask.
  static std::shared_ptr<RowScatter> Make(int64_t count, int64_t rows, std::string* refusal);

  size_t workspace_bytes() const { return layout_.bytes(); }
  // dx and dy are of one floating-point type. Writes all of dx.
  KernelStatus Run(const ScatterProblem& problem, const TensorView& dy, const TensorView& dx,
                   const FaultSink& faults, const KernelArgs& args) const;

 private:
  WorkspaceLayout layout_;
  size_t keys_ = 0, sorted_keys_ = 0, places_ = 0, sorted_positions_ = 0, temporary_ = 0;
  size_t temporary_bytes_ = 0;
  int bits_ = 32;
};

}  // namespace espalier
