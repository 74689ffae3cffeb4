#include "worker/runner/in_place_reads.h"

#include <algorithm>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/quantized/pack.h"

namespace espalier {
namespace {

// Bytes that a thread reads at once: less than its cache.
constexpr int64_t kBytesAtOnce = 1 << 18;

}  // namespace

void InPlaceReads::AddNumbers(const std::string& tensor, int64_t begin, int64_t count, float* to) {
  AddPieces({.tensor = tensor, .first = begin, .numbers = to}, count,
            kBytesAtOnce / static_cast<int64_t>(sizeof(float)));
}

void InPlaceReads::AddQ8Rows(const std::string& tensor, const std::string& weight,
                             const PackedWeights& shape, int64_t first, uint8_t* to) {
  const int64_t block_bytes = kPackOutputs * shape.groups() * kQ8BlockBytes;
  AddPieces({.tensor = tensor, .weight = weight, .shape = shape, .first = first, .packed = to},
            shape.out, std::max<int64_t>(1, kBytesAtOnce / block_bytes) * kPackOutputs);
}

void InPlaceReads::AddPieces(Part part, int64_t count, int64_t step) {
  for (int64_t begin = 0; begin < count; begin += step) {
    pieces_.push_back({parts_.size(), begin, std::min(count, begin + step)});
  }
  parts_.push_back(std::move(part));
}

absl::Status InPlaceReads::Run(const WeightLoadOptions& loading) const {
  absl::Mutex mutex;
  absl::Status cancelled;
  bool failed = false;
  const auto stops = [&] {
    absl::MutexLock lock(&mutex);
    if (cancelled.ok()) cancelled = loading.CheckCancelled();
    return failed || !cancelled.ok();
  };
  std::vector<absl::Status> statuses(pieces_.size());
  std::vector<std::vector<uint8_t>> scratch(static_cast<size_t>(MaxThreads()));
  const auto count = static_cast<int64_t>(pieces_.size());
  ParallelShared(count, MaxThreads(), [&](int64_t i, int64_t end, int thread) {
    for (; i < end && !stops(); ++i) {
      statuses[i] = Read(pieces_[i], scratch[thread]);
      if (statuses[i].ok()) continue;
      absl::MutexLock lock(&mutex);
      failed = true;
    }
  });
  if (!cancelled.ok()) return cancelled;
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status InPlaceReads::Read(const Piece& piece, std::vector<uint8_t>& scratch) const {
  const auto& [index, begin, end] = piece;
  const Part& part = parts_[index];
  const int64_t first = part.first + begin, count = end - begin;
  if (part.numbers != nullptr) {
    return files_.Read(part.tensor, first, count, part.numbers + begin);
  }
  const PackedWeights shape{part.shape.bits, count, part.shape.in};
  const int64_t blocks = count * shape.groups();
  scratch.resize(std::max(scratch.size(), static_cast<size_t>(blocks * kQ8BlockBytes)));
  absl::Status status =
      files_.ReadQ8Blocks(part.tensor, first * shape.groups(), blocks, scratch.data());
  if (!status.ok()) return status;
  return PackQ8Blocks(part.weight, shape, scratch.data(),
                      part.packed + begin / kPackOutputs * shape.block_bytes(), first);
}

}  // namespace espalier
