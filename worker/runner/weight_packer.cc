#include "worker/runner/weight_packer.h"

#include <algorithm>
#include <utility>

#include "ops/cpu/threading/parallel.h"
#include "ops/quantized/pack.h"

namespace espalier {

WeightPacker::WeightPacker(std::string name, const PackedWeights& shape, Rows kind)
    : name_(std::move(name)),
      shape_(shape),
      kind_(kind),
      row_bytes_(kind == Rows::kF32 ? shape.in * static_cast<int64_t>(sizeof(float))
                                    : shape.groups() * kQ8BlockBytes) {}

uint8_t* WeightPacker::Append(size_t bytes) {
  rows_.resize(rows_.size() + bytes);
  return rows_.data() + rows_.size() - bytes;
}

absl::Status WeightPacker::PackRows(const WriteBlocks& write) {
  std::vector<Block> blocks;
  int64_t taken = 0, packed = 0;
  while (true) {
    const int64_t rows = std::min(kPackOutputs, shape_.out - row_);
    if (static_cast<int64_t>(rows_.size()) - taken < rows * row_bytes_) break;
    blocks.push_back({rows, taken, packed});
    taken += rows * row_bytes_;
    packed += shape_.block_bytes();
    row_ = (row_ + rows) % shape_.out;
  }
  if (blocks.empty()) return absl::OkStatus();
  packed_.resize(static_cast<size_t>(packed));
  std::vector<absl::Status> statuses(blocks.size());
  const auto count = static_cast<int64_t>(blocks.size());
  ParallelFor(count, kPackOutputs * shape_.in, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) statuses[i] = PackBlock(blocks[i]);
  });
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  rows_.erase(rows_.begin(), rows_.begin() + taken);
  absl::Status status = write(packed_.data(), packed, written_);
  written_ += packed;
  return status;
}

absl::Status WeightPacker::PackBlock(const Block& block) {
  const PackedWeights part{shape_.bits, block.rows, shape_.in};
  const uint8_t* const from = rows_.data() + block.from;
  uint8_t* const to = packed_.data() + block.to;
  if (kind_ == Rows::kQ8Blocks) return PackQ8Blocks(name_, part, from, to);
  return Pack(name_, part, reinterpret_cast<const float*>(from), to);
}

}  // namespace espalier
