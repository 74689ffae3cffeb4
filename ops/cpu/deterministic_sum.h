// Deterministic parallel sums: the order of summation is a function of the shapes alone, whatever
// the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/cpu/layout/strided.h"
#include "ops/cpu/simd/vectorize.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {

// Blocks of kSumBlock elements are summed in f32, element i in lane i % kSumLanes, and then added
// to a double. Explicit lanes keep the order independent of the compiler and the instruction set.
constexpr int64_t kSumBlock = 512;
constexpr int64_t kSumLanes = 16;

// Returns the sum of term(x[i]) over n <= kSumBlock elements. `term` is a captureless lambda.
template <typename Term>
double SumTerms(const float* x, int64_t n, Term term) {
  return Vectorize(
      [](const float* x, int64_t n, Term term) {
        float lanes[kSumLanes] = {};
        const int64_t whole = n - n % kSumLanes;
        for (int64_t i = 0; i < whole; i += kSumLanes) {
          for (int64_t j = 0; j < kSumLanes; ++j) lanes[j] += term(x[i + j]);
        }
        for (int64_t j = 0; j < n - whole; ++j) lanes[j] += term(x[whole + j]);
        double sum = 0;
        for (int64_t j = 0; j < kSumLanes; ++j) sum += static_cast<double>(lanes[j]);
        return sum;
      },
      x, n, term);
}

inline double SumBlock(const float* x, int64_t n) {
  return SumTerms(x, n, [](float v) { return v; });
}

// Returns the sum over the blocks of [0, n) of partial(begin, end), the sum of one block. Blocks
// run in parallel and are added in order.
template <typename F>
double BlockedSum(int64_t n, int64_t block, const F& partial) {
  std::vector<double> partials((n + block - 1) / block);
  ParallelBlocks(n, block, [&](int64_t begin, int64_t end) {
    // Every call is one block: ParallelBlocks merges blocks only if there is one.
    partials[begin / block] = partial(begin, end);
  });
  double sum = 0;
  for (double value : partials) sum += value;
  return sum;
}

// Reduces the elements of a nest into `count` accumulators, over the loops in which operand
// `folded` has stride 0. add(accumulators, offsets, begin, end) adds elements [begin, end) of the
// row at `offsets` to the accumulator at offsets[folded], or to those from there on if the
// innermost loop moves `folded`. combine(a, b) joins two accumulators; `start` is its identity.
template <typename Acc, typename AddRow, typename Combine>
std::vector<Acc> ReduceOver(const LoopNest& nest, size_t folded, Acc start, int64_t count,
                            const AddRow& add, const Combine& combine) {
  const int64_t inner = nest.inner(), rows = nest.rows(), total = rows * inner;
  constexpr int64_t kMaxPieces = 16;
  if (nest.dims.size() > 1 && nest.strides[folded][0] != 0 && nest.dims[0] >= kMaxPieces) {
    // Each step of the outermost loop has accumulators of its own.
    std::vector<Acc> all(count, start);
    const int64_t block = rows / nest.dims[0];
    ParallelFor(nest.dims[0], block * inner, [&](int64_t begin, int64_t end) {
      ForRows(nest, begin * block, end * block,
              [&](const RowOffsets& at) { add(all.data(), at, 0, inner); });
    });
    return all;
  }
  // Cuts the rows, or the chunks of a single row, into pieces with their own accumulators.
  const int64_t chunk = rows == 1 ? kParallelGrain : inner;
  const int64_t units = rows == 1 ? (inner + chunk - 1) / chunk : rows;
  int64_t pieces = std::min({units, total / kParallelGrain, kMaxPieces});
  // Clearing and adding accumulators must be cheap relative to the work.
  pieces = std::max<int64_t>(1, std::min(pieces, total / (4 * std::max<int64_t>(count, 1))));
  std::vector<Acc> parts(pieces * count, start);
  ParallelBlocks(pieces, 1, [&](int64_t first_piece, int64_t last_piece) {
    for (int64_t piece = first_piece; piece < last_piece; ++piece) {
      Acc* accumulators = parts.data() + piece * count;
      const int64_t first = units * piece / pieces, last = units * (piece + 1) / pieces;
      if (rows == 1) {
        add(accumulators, RowOffsets{}, first * chunk, std::min(inner, last * chunk));
      } else {
        ForRows(nest, first, last, [&](const RowOffsets& at) { add(accumulators, at, 0, inner); });
      }
    }
  });
  for (int64_t piece = 1; piece < pieces; ++piece) {
    for (int64_t i = 0; i < count; ++i) parts[i] = combine(parts[i], parts[piece * count + i]);
  }
  parts.resize(count);
  return parts;
}

// target[...] = scale * (sum of values over the loops in which operand `summed` has stride 0).
// values(offsets, begin, n, buffer) returns elements [begin, begin + n), n <= kSumBlock, of the row
// at `offsets`, in its own memory or in `buffer`. The target is dense, with `count` elements.
template <typename Values>
void SumOver(const LoopNest& nest, size_t summed, const Values& values, double scale, float* target,
             int64_t count) {
  const bool keeps_inner = nest.inner_stride(summed) != 0;
  const auto add = [&](double* sums, const RowOffsets& at, int64_t begin, int64_t end) {
    float buffer[kSumBlock];
    for (int64_t i = begin; i < end; i += kSumBlock) {
      const int64_t n = std::min(kSumBlock, end - i);
      const float* v = values(at, i, n, buffer);
      if (keeps_inner) {
        Vectorize(
            [](const float* v, double* sums, int64_t n) {
#pragma omp simd
              for (int64_t j = 0; j < n; ++j) sums[j] += static_cast<double>(v[j]);
            },
            v, sums + at[summed] + i, n);
      } else {
        sums[at[summed]] += SumBlock(v, n);
      }
    }
  };
  const std::vector<double> sums =
      ReduceOver(nest, summed, 0.0, count, add, [](double a, double b) { return a + b; });
  for (int64_t i = 0; i < count; ++i) target[i] = static_cast<float>(scale * sums[i]);
}

}  // namespace espalier
