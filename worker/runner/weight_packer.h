// Packs weights into the blocks of quantized matrices (ops/kernel/packed_weights.h) while they are
// read, so that the matrix as it is in the files is never whole in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/kernel/packed_weights.h"

namespace espalier {

// Packs a sequence of matrices of one shape, from the first element on, with the threads of
// ParallelFor. Used by one thread.
class WeightPacker {
 public:
  // Rows are f32, or GGML's Q8_0 blocks (ops/quantized/pack.h).
  enum class Rows { kF32, kQ8Blocks };
  // Takes `bytes` bytes of packed blocks, which lie at byte `offset` of the whole sequence.
  using WriteBlocks =
      std::function<absl::Status(const uint8_t* blocks, int64_t bytes, int64_t offset)>;

  // `name`: of the weight, for messages.
  WeightPacker(std::string name, const PackedWeights& shape, Rows kind);

  Rows kind() const { return kind_; }

  // Room for the next `bytes` bytes of rows, valid until the next call. The caller fills it before
  // it calls PackRows.
  uint8_t* Append(size_t bytes);

  // Passes the blocks that are complete by now to `write`, if any. Returns InvalidArgument for a
  // weight that cannot be packed, and what `write` returns.
  absl::Status PackRows(const WriteBlocks& write);

 private:
  // A block's rows, and where it begins among the rows and among the packed bytes.
  struct Block {
    int64_t rows, from, to;
  };

  absl::Status PackBlock(const Block& block);

  const std::string name_;
  const PackedWeights shape_;
  const Rows kind_;
  const int64_t row_bytes_;
  std::vector<uint8_t> rows_, packed_;
  int64_t row_ = 0;      // next row of the current matrix
  int64_t written_ = 0;  // bytes
};

}  // namespace espalier
