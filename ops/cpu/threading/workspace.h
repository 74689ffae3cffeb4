// Lays out several blocks inside a kernel's workspace.
#pragma once

#include <algorithm>
#include <cstddef>

namespace espalier {

class WorkspaceLayout {
 public:
  // Adds a block of `bytes` bytes and returns its offset, 64-byte aligned.
  size_t Add(size_t bytes) {
    const size_t offset = end_;
    end_ += (bytes + 63) / 64 * 64;
    bytes_ = std::max(bytes_, end_);
    return offset;
  }
  // Returns the offset of the next block.
  size_t end() const { return end_; }
  // Reuses the memory from this offset on: blocks there are no longer in use when later ones are.
  void ReuseFrom(size_t end) { end_ = end; }
  size_t bytes() const { return bytes_; }

 private:
  size_t end_ = 0, bytes_ = 0;
};

// Returns the block at `offset` as elements of T.
template <typename T = float>
T* WorkspaceAt(void* workspace, size_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(workspace) + offset);
}

}  // namespace espalier
