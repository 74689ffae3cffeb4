#include "tests/benchmarks/bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/benchmarks/workload.h"

namespace espalier {
namespace {

using Vector = uint64_t __attribute__((vector_size(64)));
constexpr int64_t kPage = 2 << 20;  // as the CPU device asks for, too
constexpr int64_t kLanes = 8;       // independent sums, so that additions do not limit the loads

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

void ReadArray::Free::operator()(char* data) const { std::free(data); }

ReadArray::ReadArray(int threads, int64_t bytes)
    : part_(std::max<int64_t>(1, bytes / threads / kPage) * kPage), parts_(threads) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; ++t) {
    parts_[t].reset(static_cast<char*>(std::aligned_alloc(kPage, static_cast<size_t>(part_))));
    (void)madvise(parts_[t].get(), static_cast<size_t>(part_), MADV_HUGEPAGE);
    std::memset(parts_[t].get(), t + 1, static_cast<size_t>(part_));
  }
}

double ReadArray::Read(int64_t times) {
  const int threads = static_cast<int>(parts_.size());
  uint64_t total = 0;
  const double start = Seconds();
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : total)
  for (int t = 0; t < threads; ++t) {
    for (int64_t i = 0; i < times; ++i) total += Sum(parts_[t].get(), part_);
  }
  const double seconds = Seconds() - start;
  // It is kept, so that the reads are not optimised away.
  total_ += total;
  return static_cast<double>(part_ * threads * times) / seconds;
}

double ReadBandwidth(int threads, int64_t bytes) {
  constexpr int kPasses = 7;
  ReadArray array(threads, bytes);
  const int64_t times = std::max<int64_t>(1, (int64_t{1} << 30) / bytes);
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) best = std::max(best, array.Read(times));
  return best;
}

}  // namespace espalier
