// Fragments of keys and values: elements of the KV cache split exactly into bf16 planes
// (gemm/bf16x3_split.cuh).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/cuda/gemm/bf16x3_split.cuh"
#include "ops/cuda/math/numeric.cuh"

namespace espalier {
namespace cuda_paged_attention {

// Eight consecutive elements of a head of the KV cache.
template <typename C>
struct KvVector8 {
  static constexpr int kPlanes = std::is_same_v<C, float> ? 3 : std::is_same_v<C, __half> ? 2 : 1;
  static constexpr int kWords = 2 * sizeof(C);
  uint32_t words[kWords];

  // Loads elements at .. at + 7; zeros beyond `dim`. kWhole: the eight elements are aligned and lie
  // all before or all beyond `dim`.
  template <bool kWhole>
  __device__ __forceinline__ void Load(const C* head, int at, int dim) {
    if constexpr (kWhole) {
      using Vector = std::conditional_t<kWords == 2, uint2, uint4>;
      constexpr int kEach = sizeof(Vector) / 4;
      const bool there = at < dim;
#pragma unroll
      for (int i = 0; i < kWords / kEach; ++i) {
        Vector vector{};
        if (there) vector = reinterpret_cast<const Vector*>(head + at)[i];
        memcpy(words + i * kEach, &vector, sizeof(vector));
      }
    } else {
      C numbers[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) numbers[e] = at + e < dim ? head[at + e] : Zero();
      memcpy(words, numbers, sizeof(words));
    }
  }

  // Packs elements 2 i and 2 i + 1, by plane.
  __device__ __forceinline__ void Pair(int i, uint32_t (&pair)[kPlanes]) const {
    if constexpr (std::is_same_v<C, __nv_bfloat16>) {
      pair[0] = words[i];
    } else {
      Split(Bits(2 * i), Bits(2 * i + 1), pair);
    }
  }
  // Packs element e of this key and of the key `next`, by plane.
  __device__ __forceinline__ void Pair(const KvVector8& next, int e,
                                       uint32_t (&pair)[kPlanes]) const {
    if constexpr (std::is_same_v<C, __nv_bfloat16>) {
      pair[0] = __byte_perm(words[e / 2], next.words[e / 2], e % 2 == 0 ? 0x5410 : 0x7632);
    } else {
      Split(Bits(e), next.Bits(e), pair);
    }
  }

  __device__ __forceinline__ bool Finite() const {
    bool finite = true;
    if constexpr (!std::is_same_v<C, int8_t>) {
#pragma unroll
      for (int e = 0; e < 8; ++e) finite = finite && isfinite(__uint_as_float(Bits(e)));
    }
    return finite;
  }

 private:
  __device__ static __forceinline__ C Zero() {
    if constexpr (std::is_same_v<C, int8_t>) {
      return 0;
    } else {
      return FromFloat<C>(0.0f);
    }
  }

  // Element e as the bits of an f32.
  __device__ __forceinline__ uint32_t Bits(int e) const {
    if constexpr (std::is_same_v<C, float>) {
      return words[e];
    } else if constexpr (std::is_same_v<C, int8_t>) {
      // The bits are 2^23 + 128 + the element; subtracts 2^23 + 128.
      const uint32_t bits = __byte_perm(words[e / 4] ^ 0x80808080u, 0x4b000000u, 0x7540 + e % 4);
      return __float_as_uint(__uint_as_float(bits) - 8388736.0f);
    } else if constexpr (std::is_same_v<C, __half>) {
      uint32_t pair[2];
      Widen(words[e / 2], pair[0], pair[1]);
      return pair[e % 2];
    } else {
      return e % 2 == 0 ? words[e / 2] << 16 : words[e / 2] & 0xffff0000u;
    }
  }
  __device__ static __forceinline__ void Split(uint32_t first, uint32_t second,
                                               uint32_t (&pair)[kPlanes]) {
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
      if (p > 0) {
        first = Bf16Remainder(first);
        second = Bf16Remainder(second);
      }
      pair[p] = TruncatePairToBf16(first, second);
    }
  }
};

}  // namespace cuda_paged_attention
}  // namespace espalier
