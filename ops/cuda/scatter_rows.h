// The gradient of a lookup: dx[o, r, :] = sum of dy[o, j, :] over the j with index[j] == r, in the
// order of j. Indices are sorted (stably), and one block sums each run of equal ones:
// deterministic, without atomics.
#pragma once

#include "ops/cuda/labels.cuh"
#include "ops/cuda/runtime/device_fault.h"
#include "ops/cuda/runtime/register.h"

namespace espalier {

struct ScatterProblem {
  Integers indices;
  int64_t count = 0;   // of indices
  int64_t outer = 1;   // dx is [outer, rows, inner], dy is [outer, count / repeat, inner]
  int64_t repeat = 1;  // index j adds row j / repeat of dy
  const float* weights = nullptr;  // factor of each index's row; null: 1
  int64_t rows = 0;
  int64_t inner = 1;
  int64_t offset = 0;     // index of row 0; indices of other shards' rows are skipped
  int64_t limit = 0;      // exclusive bound of indices
  bool from_end = false;  // negative indices count from the end
  bool skips = false;     // whether indices equal to `skipped` are valid and skipped
  int64_t skipped = -1;
  FaultKind fault = FaultKind::kGatherIndex;
};

class RowScatter {
 public:
  // Returns null and sets *refusal if the problem is too large or there is no device.
  static std::shared_ptr<RowScatter> Make(int64_t count, int64_t rows, std::string* refusal);

  size_t workspace_bytes() const { return layout_.bytes(); }
  // Writes all of dx. REQUIRES: dx and dy have one floating-point type.
  KernelStatus Run(const ScatterProblem& problem, const TensorView& dy, const TensorView& dx,
                   const FaultSink& faults, const KernelArgs& args) const;

 private:
  WorkspaceLayout layout_;
  size_t keys_ = 0, sorted_keys_ = 0, places_ = 0, sorted_positions_ = 0, temporary_ = 0;
  size_t temporary_bytes_ = 0;
  int bits_ = 32;
};

}  // namespace espalier
