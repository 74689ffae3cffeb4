// top_k, arg_top_k, sort and argsort: sorts each line by integer keys made from its elements.
#pragma once

#include <memory>
#include <string>

#include "ops/cuda/runtime/register.h"

namespace espalier {

class TopKSort {
 public:
  // For the lines of spec.inputs[0], by the attributes of top_k. Returns null and sets *refusal if
  // it is too large or there is no device.
  static std::shared_ptr<TopKSort> Make(const KernelSpec& spec, std::string* refusal);
  // All elements of the lines, by the attributes of sort.
  static std::shared_ptr<TopKSort> MakeWhole(const KernelSpec& spec, std::string* refusal);

  size_t workspace_bytes() const { return layout_.bytes(); }
  // `values` (like x) and `places` (i32 or i64) have k elements along the axis; either may be
  // absent.
  KernelStatus Run(const TensorView& x, const TensorView& values, const TensorView& places,
                   const KernelArgs& args) const;

 private:
  static std::shared_ptr<TopKSort> Make(const TensorSpec& x, int64_t axis, int64_t k, bool largest,
                                        std::string* refusal);
  template <typename Key>
  KernelStatus RunAs(const TensorView& x, const TensorView& values, const TensorView& places,
                     const KernelArgs& args) const;
  template <typename Key>
  KernelStatus Sort(int64_t count, int64_t lines, const KernelArgs& args) const;

  int64_t axis_ = 0, k_ = 0;
  bool largest_ = true;
  WorkspaceLayout layout_;
  size_t keys_ = 0, sorted_keys_ = 0, places_ = 0, sorted_positions_ = 0, starts_ = 0,
         temporary_ = 0;
  size_t temporary_bytes_ = 0;
};

// Adds the kernel `op`: places (i64), d_values (indices have no gradient) -> dx, which is d_values
// at the places that they were taken from and 0 elsewhere. `op` must be a literal.
void AddTopKGradient(KernelRegistry& registry, const char* op);

}  // namespace espalier
