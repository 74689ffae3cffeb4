#include "tests/benchmarks/memory_bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "ops/cpu/threading/parallel.h"
#include "tests/benchmarks/seconds.h"

namespace espalier {
namespace {

using Vector = uint64_t __attribute__((vector_size(64)));
constexpr int64_t kPage = 2 << 20;  // huge pages, as for the CPU device
constexpr int64_t kPiece = 64 << 10;
constexpr int64_t kLanes = 8;  // independent sums, so that additions do not limit the loads

__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3"))) uint64_t Sum(
    const char* data, int64_t bytes) {
  Vector sums[kLanes] = {};
  const Vector* v = reinterpret_cast<const Vector*>(data);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(Vector)) / kLanes * kLanes;
  for (int64_t i = 0; i < count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += v[i + lane];
  }
  uint64_t total = 0;
  for (const Vector& sum : sums) {
    for (size_t e = 0; e < sizeof(Vector) / sizeof(uint64_t); ++e) total += sum[e];
  }
  return total;
}

}  // namespace

void ReadBandwidthArray::Free::operator()(char* data) const { std::free(data); }

ReadBandwidthArray::ReadBandwidthArray(int threads, int64_t bytes)
    : threads_(threads),
      pieces_((bytes + kPiece - 1) / kPiece),
      data_(static_cast<char*>(std::aligned_alloc(
          kPage, static_cast<size_t>((pieces_ * kPiece + kPage - 1) / kPage * kPage)))) {
  (void)madvise(data_.get(), static_cast<size_t>(pieces_ * kPiece), MADV_HUGEPAGE);
  ParallelShared(pieces_, threads_, [&](int64_t begin, int64_t end, int part) {
    std::memset(data_.get() + begin * kPiece, part + 1,
                static_cast<size_t>((end - begin) * kPiece));
  });
}

double ReadBandwidthArray::Read(int64_t times) {
  std::atomic<uint64_t> total = 0;
  const double start = Seconds();
  for (int64_t i = 0; i < times; ++i) {
    ParallelShared(pieces_, threads_, [&](int64_t begin, int64_t end, int) {
      total += Sum(data_.get() + begin * kPiece, (end - begin) * kPiece);
    });
  }
  const double seconds = Seconds() - start;
  // Uses the sum, so that the compiler does not remove the reads.
  total_ += total;
  return static_cast<double>(pieces_ * kPiece * times) / seconds;
}

double ReadBandwidth(int threads, int64_t bytes) {
  constexpr int kPasses = 7;
  ReadBandwidthArray array(threads, bytes);
  const int64_t times = std::max<int64_t>(1, (int64_t{1} << 30) / bytes);
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) best = std::max(best, array.Read(times));
  return best;
}

}  // namespace espalier
