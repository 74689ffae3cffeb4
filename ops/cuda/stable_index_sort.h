// Stable sort of positions by the target index of each, which makes scatters deterministic without
// atomics: the updates of one target are applied in their order.
#pragma once

#include <memory>
#include <string>

#include "ops/cuda/runtime/register.h"

namespace espalier {

class StableIndexSort {
 public:
  // For `count` positions with targets in [0, targets]; target `targets` means none. Returns null
  // and sets *refusal if there are too many or there is no device.
  static std::shared_ptr<StableIndexSort> Make(int64_t count, int64_t targets,
                                               std::string* refusal);

  size_t workspace_bytes() const { return layout_.bytes(); }
  int64_t count() const { return count_; }
  int64_t targets() const { return targets_; }

  // Inputs of Sort, to be filled: the target of each position, and the positions 0 to count - 1.
  uint32_t* keys(const KernelArgs& args) const { return WorkspaceAt<uint32_t>(args, keys_); }
  uint32_t* positions(const KernelArgs& args) const {
    return WorkspaceAt<uint32_t>(args, positions_);
  }
  KernelStatus Sort(const KernelArgs& args) const;
  const uint32_t* sorted_keys(const KernelArgs& args) const {
    return WorkspaceAt<uint32_t>(args, sorted_keys_);
  }
  const uint32_t* sorted_positions(const KernelArgs& args) const {
    return WorkspaceAt<uint32_t>(args, sorted_positions_);
  }

 private:
  int64_t count_ = 0, targets_ = 0;
  int bits_ = 1;
  WorkspaceLayout layout_;
  size_t keys_ = 0, sorted_keys_ = 0, positions_ = 0, sorted_positions_ = 0, temporary_ = 0;
  size_t temporary_bytes_ = 0;
};

}  // namespace espalier
