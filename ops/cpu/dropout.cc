#include <algorithm>
#include <string>

#include "ops/cpu/elementwise.h"
#include "ops/cpu/layout/copy.h"
#include "ops/kernel/philox.h"

namespace espalier {
namespace {

struct Random {
  uint64_t key;  // as PhiloxUniform derives it from seed and node
  uint64_t step;
  uint32_t zeros;  // number of the 2^24 random values that drop the element
  float scale;     // of kept elements
};

// y = x * mask * scale for n elements, of which the first one is `element` in the whole tensor. The
// mask is that of PhiloxUniform(...) >= rate; here one Philox block serves the four elements that
// share it.
void MaskRow(const Random& random, const float* x, float* y, uint64_t element, int64_t n) {
  constexpr int64_t kQuads = 64;
  uint32_t words[4 * kQuads];
  for (int64_t i = 0; i < n;) {
    const int64_t skip = static_cast<int64_t>((element + i) & 3);
    const int64_t count = std::min(n - i, 4 * kQuads - skip);
    const int64_t quads = (skip + count + 3) / 4;
    Vectorize(
        [](uint64_t key, uint64_t first, uint64_t step, int64_t quads, uint32_t* words) {
#pragma omp simd
          for (int64_t q = 0; q < quads; ++q) {
            const PhiloxBlock block = Philox(key, first + q, step);
            words[4 * q] = block.word[0];
            words[4 * q + 1] = block.word[1];
            words[4 * q + 2] = block.word[2];
            words[4 * q + 3] = block.word[3];
          }
        },
        random.key, (element + i) >> 2, random.step, quads, words);
    Vectorize(
        [](const uint32_t* words, uint32_t zeros, float scale, const float* x, float* y,
           int64_t n) {
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) y[j] = (words[j] >> 8) < zeros ? 0.0f : x[j] * scale;
        },
        words + skip, random.zeros, random.scale, x + i, y + i, count);
    i += count;
  }
}

// The same kernel is the gradient, with dy and dx as x and y.
KernelStatus Run(const KernelArgs& args, double rate) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (!args.training || rate == 0) {
    CopyBytes(x.data, y.data, y.spec.bytes());
    return KernelStatus::Ok();
  }
  if (y.num_elements() == 0) return KernelStatus::Ok();
  // The number is k / 2^24: it is below the rate when k is below this, rounded up.
  const double threshold = static_cast<double>(static_cast<float>(rate)) * 16777216.0;
  uint32_t zeros = static_cast<uint32_t>(threshold);
  if (zeros < threshold) ++zeros;
  const Random random{args.seed ^ (args.node_key * 0x9E3779B97F4A7C15ull),
                      static_cast<uint64_t>(args.step), zeros,
                      static_cast<float>(1.0 / (1.0 - rate))};
  // Rows that are contiguous in the shard and in the whole tensor.
  const Dims whole = DenseStrides(y.spec.global);
  const LoopNest nest = Merge(y.dims(), {DenseStrides(y.dims()), whole});
  int64_t first = 0;
  for (size_t d = 0; d < whole.size(); ++d) first += y.spec.offset[d] * whole[d];
  const float* source = x.as<float>();
  float* target = y.as<float>();
  const int64_t n = nest.inner();
  if (nest.inner_stride(1) != 1) {
    // The innermost dimension is split so far that each row of the shard has one element.
    for (int64_t row = 0; row < nest.rows(); ++row) {
      ForRows(nest, row, row + 1, [&](const RowOffsets& at) {
        for (int64_t i = 0; i < n; ++i) {
          MaskRow(random, source + at[0] + i, target + at[0] + i,
                  static_cast<uint64_t>(first + at[1] + i * nest.inner_stride(1)), 1);
        }
      });
    }
    return KernelStatus::Ok();
  }
  const auto mask = [&](int64_t at, int64_t element, int64_t count) {
    MaskRow(random, source + at, target + at, static_cast<uint64_t>(first + element), count);
  };
  if (nest.rows() == 1) {
    ParallelFor(n, 2, [&](int64_t begin, int64_t end) { mask(begin, begin, end - begin); });
  } else {
    ParallelFor(nest.rows(), 2 * n, [&](int64_t begin, int64_t end) {
      ForRows(nest, begin, end, [&](const RowOffsets& at) { mask(at[0], at[1], n); });
    });
  }
  return KernelStatus::Ok();
}

}  // namespace

void RegisterDropoutCpu(KernelRegistry& registry) {
  const KernelFactory factory = ViaF32([](const KernelSpec& spec, std::string*) {
    const double rate = spec.attributes.Float("rate");
    return MakeKernel([rate](const KernelArgs& args) { return Run(args, rate); });
  });
  registry.Add("dropout", factory);
  registry.Add("dropout_grad", factory);
}

}  // namespace espalier
