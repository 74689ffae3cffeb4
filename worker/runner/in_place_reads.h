// Reads weights straight to their place in host memory, on all threads: the kernel clears pages at
// their first use, which takes much of the time. The pieces of all weights are one list, so that no
// thread waits for the others at the end of each weight.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/weights/weight_files.h"
#include "ops/kernel/packed_weights.h"
#include "worker/runner/weight_load_options.h"

namespace espalier {

class InPlaceReads {
 public:
  explicit InPlaceReads(const WeightFiles& files) : files_(files) {}

  // Adds elements [begin, begin + count) of a tensor, as f32.
  void AddNumbers(const std::string& tensor, int64_t begin, int64_t count, float* to);
  // Adds rows [first, first + shape.out) of a tensor that HasQ8Blocks, packed. `weight`: for
  // messages. REQUIRES: the tensor has shape.in columns.
  void AddQ8Rows(const std::string& tensor, const std::string& weight, const PackedWeights& shape,
                 int64_t first, uint8_t* to);

  // Reads what was added. Returns Cancelled if loading.cancelled returns true, which one thread at
  // a time asks before each piece; else an error of WeightFiles::Read, ReadQ8Blocks or
  // PackQ8Blocks, after which little more is read.
  absl::Status Run(const WeightLoadOptions& loading) const;

 private:
  struct Part {
    std::string tensor, weight;
    PackedWeights shape;  // of Q8_0 rows
    int64_t first = 0;    // element or row
    float* numbers = nullptr;
    uint8_t* packed = nullptr;
  };
  // Elements or rows [begin, end) of a part.
  struct Piece {
    size_t part;
    int64_t begin, end;
  };

  void AddPieces(Part part, int64_t count, int64_t step);
  absl::Status Read(const Piece& piece, std::vector<uint8_t>& scratch) const;

  const WeightFiles& files_;
  std::vector<Part> parts_;
  std::vector<Piece> pieces_;
};

}  // namespace espalier
