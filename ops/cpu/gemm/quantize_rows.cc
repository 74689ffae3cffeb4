// Quantizes rows of f32 to int8, group by group (quantized_gemm.h).
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "ops/cpu/gemm/quantized_gemm.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

#define ESPALIER_AVX2 __attribute__((target("avx2,fma")))

// Adding and subtracting 1.5 * 2^23 rounds to an integer.
constexpr float kRound = 12582912.0f;

// Scale of a group with this largest magnitude, which is NaN or infinite if an element is.
struct Steps {
  float scale, inverse;

  static Steps Of(float largest) {
    if (!(largest <= std::numeric_limits<float>::max())) {
      return {std::numeric_limits<float>::quiet_NaN(), 0};
    }
    return largest > 1e-30f ? Steps{largest / 127.0f, 127.0f / largest} : Steps{0, 0};
  }
  bool all_zero() const { return inverse == 0; }
};

// Quantizes one group of x, of which n <= 32 elements exist.
void QuantizeGroup(const float* x, int64_t n, const QuantizedRows& to, int64_t group) {
  int32_t bits[kPackGroup] = {};
  std::memcpy(bits, x, static_cast<size_t>(n) * sizeof(float));
  // Magnitudes compare as the integers of their bits; infinities and NaN are the largest.
  int32_t largest = 0;
  for (int64_t i = 0; i < kPackGroup; ++i) largest = std::max(largest, bits[i] & 0x7fffffff);
  const Steps steps = Steps::Of(std::bit_cast<float>(largest));
  int32_t sum = 0;
  int32_t rounded[kPackGroup] = {};
  if (!steps.all_zero()) {
    for (int64_t i = 0; i < kPackGroup; ++i) {
      const float shifted = std::bit_cast<float>(bits[i]) * steps.inverse + kRound;
      rounded[i] = static_cast<int32_t>(shifted - kRound);
      sum += rounded[i];
    }
  }
  int8_t* const q = to.q + group * kPackGroup;
  for (int64_t i = 0; i < kPackGroup; ++i) q[i] = static_cast<int8_t>(rounded[i]);
  to.scale[group] = steps.scale;
  to.sum[group] = sum;
  to.scaled_sum[group] = steps.scale * static_cast<float>(sum);
}

// QuantizeGroup with intrinsics: the compiler's code takes twice as long, and nothing else runs
// while a single row is quantized.
ESPALIER_AVX2 void QuantizeGroupAvx2(const float* x, int64_t n, const QuantizedRows& to,
                                     int64_t group) {
  float padded[kPackGroup];
  if (n < kPackGroup) {
    std::fill(std::copy_n(x, n, padded), padded + kPackGroup, 0.0f);
    x = padded;
  }
  constexpr int kParts = 4;
  __m256 part[kParts];
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < kParts; ++i) {
    part[i] = _mm256_loadu_ps(x + 8 * i);
    const __m256i bits = _mm256_castps_si256(part[i]);
    largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
  }
  __m128i four =
      _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  const Steps steps = Steps::Of(std::bit_cast<float>(_mm_cvtsi128_si32(four)));
  __m256i rounded[kParts];
  for (int i = 0; i < kParts; ++i) {
    const __m256 round = _mm256_set1_ps(kRound);
    const __m256 shifted = _mm256_fmadd_ps(part[i], _mm256_set1_ps(steps.inverse), round);
    rounded[i] = steps.all_zero() ? _mm256_setzero_si256()
                                  : _mm256_cvttps_epi32(_mm256_sub_ps(shifted, round));
  }
  const __m256i sums = _mm256_add_epi32(_mm256_add_epi32(rounded[0], rounded[1]),
                                        _mm256_add_epi32(rounded[2], rounded[3]));
  four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  const int32_t sum = _mm_cvtsi128_si32(four);
  // Packing works on 128-bit halves, which permutes the words.
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(rounded[0], rounded[1]),
                                           _mm256_packs_epi32(rounded[2], rounded[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.q + group * kPackGroup),
                      _mm256_permutevar8x32_epi32(bytes, order));
  to.scale[group] = steps.scale;
  to.sum[group] = sum;
  to.scaled_sum[group] = steps.scale * static_cast<float>(sum);
}

}  // namespace

QuantizedRows QuantizedRows::At(void* memory, int64_t rows, int64_t groups) {
  QuantizedRows out;
  out.rows = rows;
  out.groups = groups;
  const int64_t all = rows * groups;
  out.q = static_cast<int8_t*>(memory);
  out.scale = reinterpret_cast<float*>(out.q + all * kPackGroup);
  out.sum = reinterpret_cast<int32_t*>(out.scale + all);
  out.scaled_sum = reinterpret_cast<float*>(out.sum + all);
  return out;
}

QuantizedRows QuantizedRows::Part(int64_t begin, int64_t end) const {
  QuantizedRows part = *this;
  part.rows = end - begin;
  part.q += begin * groups * kPackGroup;
  part.scale += begin * groups;
  part.sum += begin * groups;
  part.scaled_sum += begin * groups;
  return part;
}

void QuantizeRows(QuantizedIsa isa, const float* x, int64_t in, const QuantizedRows& to) {
  const auto quantize = isa == QuantizedIsa::kPortable ? QuantizeGroup : QuantizeGroupAvx2;
  ParallelFor(to.rows * to.groups, 4 * kPackGroup, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / to.groups, first = i % to.groups * kPackGroup;
      quantize(x + row * in + first, std::min(kPackGroup, in - first), to, i);
    }
  });
}

}  // namespace espalier
