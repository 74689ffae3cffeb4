#include "tests/benchmarks/bandwidth.h"

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "tests/benchmarks/workload.h"

namespace espalier {
namespace {

using Vector = uint64_t __attribute__((vector_size(64)));
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

double ReadBandwidth(int threads, int64_t bytes) {
  const int64_t part = bytes / threads / 4096 * 4096;
  const int64_t repeats = std::max<int64_t>(1, (int64_t{1} << 30) / bytes);
  constexpr int kPasses = 7;
  std::vector<double> seconds(kPasses, 0);
  std::barrier meet(threads);
  std::vector<std::thread> team;
  std::vector<uint64_t> totals(threads);
  for (int t = 0; t < threads; ++t) {
    team.emplace_back([&, t] {
      std::unique_ptr<char, decltype(&std::free)> data(
          static_cast<char*>(std::aligned_alloc(4096, static_cast<size_t>(part))), &std::free);
      std::memset(data.get(), t + 1, static_cast<size_t>(part));
      for (int pass = 0; pass < kPasses; ++pass) {
        meet.arrive_and_wait();
        const double start = Seconds();
        for (int64_t r = 0; r < repeats; ++r) totals[t] += Sum(data.get(), part);
        meet.arrive_and_wait();
        if (t == 0) seconds[pass] = Seconds() - start;
      }
    });
  }
  for (std::thread& thread : team) thread.join();
  // The totals are looked at, so that the reads are not optimised away.
  uint64_t all = 0;
  for (uint64_t total : totals) all |= total;
  const double best = *std::min_element(seconds.begin(), seconds.end());
  return all == 0 ? 0 : static_cast<double>(part * threads * repeats) / best;
}

}  // namespace espalier
