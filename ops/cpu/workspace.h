// Offsets of several blocks inside a kernel's workspace.
#pragma once

#include <cstddef>

namespace espalier {

class WorkspaceLayout {
 public:
  // The offset of a new block of `bytes` bytes, 64-byte aligned.
  size_t Add(size_t bytes) {
    const size_t offset = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return offset;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

// The block at `offset`, as elements of T.
template <typename T = float>
T* WorkspaceAt(void* workspace, size_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(workspace) + offset);
}

}  // namespace espalier
