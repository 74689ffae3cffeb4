// The byte shuffle filter: of a block of elements of four bytes, first the first byte of each, then
// the second of each, and so on. The exponents of neighbouring floats are then side by side, where
// a compressor finds what they have in common. Not thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

// A stream of bytes, shuffled in blocks of the same size; the last may be shorter. What is left of
// a block that is no whole element stays behind it as it is.
class ByteShuffler {
 public:
  static ByteShuffler Forward(size_t block_bytes) { return {block_bytes, /*forward=*/true}; }
  // Of the same block size: returns the bytes that Forward was given.
  static ByteShuffler Back(size_t block_bytes) { return {block_bytes, /*forward=*/false}; }

  // Adds bytes, and appends to `out` the blocks that are complete.
  void Add(absl::string_view bytes, std::string* out);
  // Appends the last block. Once, after all bytes.
  void Finish(std::string* out);

 private:
  ByteShuffler(size_t block_bytes, bool forward) : block_bytes_(block_bytes), forward_(forward) {}
  void Append(absl::string_view block, std::string* out) const;

  size_t block_bytes_;
  bool forward_;
  std::string begun_;  // of the next block
};

}  // namespace espalier
