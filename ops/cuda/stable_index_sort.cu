#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "ops/cuda/runtime/cuda_status.h"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/stable_index_sort.h"

namespace espalier {

std::shared_ptr<StableIndexSort> StableIndexSort::Make(int64_t count, int64_t targets,
                                                       std::string* refusal) {
  const int64_t most = std::numeric_limits<int32_t>::max();
  if (count > most || targets >= most) {
    *refusal = "more than 2^31 positions to read or write";
    return nullptr;
  }
  auto sort = std::make_shared<StableIndexSort>();
  sort->count_ = count;
  sort->targets_ = targets;
  while ((int64_t{1} << sort->bits_) <= targets) ++sort->bits_;
  uint32_t* none = nullptr;
  const KernelStatus asked =
      CudaStatus(cub::DeviceRadixSort::SortPairs(nullptr, sort->temporary_bytes_, none, none, none,
                                                 none, static_cast<int>(count), 0, sort->bits_),
                 "size of the sort's workspace");
  if (!asked.ok()) {
    *refusal = asked.error;
    return nullptr;
  }
  const size_t bytes = static_cast<size_t>(count) * sizeof(uint32_t);
  sort->keys_ = sort->layout_.Add(bytes);
  sort->sorted_keys_ = sort->layout_.Add(bytes);
  sort->positions_ = sort->layout_.Add(bytes);
  sort->sorted_positions_ = sort->layout_.Add(bytes);
  sort->temporary_ = sort->layout_.Add(sort->temporary_bytes_);
  return sort;
}

KernelStatus StableIndexSort::Sort(const KernelArgs& args) const {
  if (count_ == 0) return KernelStatus::Ok();
  size_t temporary_bytes = temporary_bytes_;
  return CudaStatus(
      cub::DeviceRadixSort::SortPairs(WorkspaceAt(args, temporary_), temporary_bytes, keys(args),
                                      WorkspaceAt<uint32_t>(args, sorted_keys_), positions(args),
                                      WorkspaceAt<uint32_t>(args, sorted_positions_),
                                      static_cast<int>(count_), 0, bits_, StreamOf(args)),
      "sort of positions");
}

}  // namespace espalier
