// SIMD vectors of W floats (GCC's vector extension) and dispatch by instruction set at run time.
// The programs are compiled for plain x86-64; a kernel writes its inner loop as
//
//   template <int W> struct SumRows { static ESPALIER_INLINE void Run(const float* x, ...) {...} };
//   simd::Dispatch<SumRows>(x, ...);
//
// and gets it compiled for W = 16 (AVX-512), 8 (AVX2 with FMA) and 4 (SSE2). Everything that Run
// calls must be ESPALIER_INLINE, and it must contain no lambda: neither would inherit the target.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#define ESPALIER_INLINE inline __attribute__((always_inline))

namespace espalier::simd {

template <int W>
struct Types {
  typedef float Float __attribute__((vector_size(W * 4)));
  typedef int32_t Int __attribute__((vector_size(W * 4)));
  typedef uint32_t Word __attribute__((vector_size(W * 4)));
  typedef uint16_t Short __attribute__((vector_size(W * 2)));
};
template <int W>
using Float = typename Types<W>::Float;
template <int W>
using Int = typename Types<W>::Int;

template <int W>
ESPALIER_INLINE Float<W> Splat(float value) {
  return Float<W>{} + value;
}

// Broadcasts *p to every lane. (Splat of a loaded value would add it to zeros.)
template <int W>
ESPALIER_INLINE Float<W> LoadSplat(const float* p) {
  if constexpr (W >= 8) {
    Float<W> v;
    asm("vbroadcastss %1, %0" : "=v"(v) : "m"(*p));
    return v;
  } else {
    return Splat<W>(*p);
  }
}

template <int W>
ESPALIER_INLINE Float<W> Load(const float* p) {
  Float<W> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <int W>
ESPALIER_INLINE void Store(float* p, Float<W> v) {
  std::memcpy(p, &v, sizeof(v));
}

// Loads the first n < W elements; the other lanes are `fill`.
template <int W>
ESPALIER_INLINE Float<W> LoadPartial(const float* p, int64_t n, float fill = 0) {
  Float<W> v = Splat<W>(fill);
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
}

template <int W>
ESPALIER_INLINE void StorePartial(float* p, Float<W> v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
}

// Keeps v in a register: GCC would fold its load into every instruction that uses it.
template <int W>
ESPALIER_INLINE Float<W> Pin(Float<W> v) {
  asm("" : "+v"(v));
  return v;
}

template <int W>
ESPALIER_INLINE Float<W> Max(Float<W> a, Float<W> b) {
  return a > b ? a : b;
}

// Adds the two halves of every block of 2 * B lanes of a, then of b: W sums in order.
template <int W, int B, int... I>
ESPALIER_INLINE Float<W> MergeHalves(Float<W> a, Float<W> b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I / B * 2 * B + I % B)...) +
         __builtin_shufflevector(a, b, (I / B * 2 * B + I % B + B)...);
}

// Returns in lane i the sum of the lanes of v[i]. The order is fixed: a tree that adds lanes j and
// j + W/2 first. Destroys v.
template <int W>
ESPALIER_INLINE Float<W> SumEach(Float<W>* v) {
  using Lanes = std::make_integer_sequence<int, W>;
#pragma GCC unroll 8
  for (int i = 0; i < W / 2; ++i) {
    v[i] = MergeHalves<W, W / 2>(v[2 * i], v[2 * i + 1], Lanes{});
  }
#pragma GCC unroll 4
  for (int i = 0; i < W / 4; ++i) {
    v[i] = MergeHalves<W, W / 4>(v[2 * i], v[2 * i + 1], Lanes{});
  }
  if constexpr (W >= 8) {
#pragma GCC unroll 2
    for (int i = 0; i < W / 8; ++i) {
      v[i] = MergeHalves<W, W / 8>(v[2 * i], v[2 * i + 1], Lanes{});
    }
  }
  if constexpr (W >= 16) v[0] = MergeHalves<W, 1>(v[0], v[1], Lanes{});
  return v[0];
}

// Returns the sum of the lanes, in the order of SumEach.
template <int W>
ESPALIER_INLINE float Sum(Float<W> v) {
#pragma GCC unroll 4
  for (int half = W / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] = v[i] + v[i + half];
  }
  return v[0];
}

template <int W>
ESPALIER_INLINE float MaxLane(Float<W> v) {
  float m = v[0];
  for (int i = 1; i < W; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

// e^x within 2 ulp; 0 below -87.3, infinity above 88.7, NaN for NaN. Cody-Waite reduction and the
// polynomial of Cephes' expf.
template <int W>
ESPALIER_INLINE Float<W> Exp(Float<W> x) {
  const Float<W> low = Splat<W>(-87.3365448f), high = Splat<W>(88.7228390f);
  const Float<W> clamped = x < low ? low : (x > high ? high : x);
  const Float<W> round = Splat<W>(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Float<W> shifted = clamped * 1.44269504088896341f + round;
  const Float<W> n = shifted - round;
  const Int<W> power = (Int<W>)shifted - (Int<W>)round;
  Float<W> r = clamped - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Float<W> p = Splat<W>(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^power in two factors, since 2^128 is no float.
  const Int<W> half = power >> 1;
  p = p * (Float<W>)((half + 127) << 23) * (Float<W>)((power - half + 127) << 23);
  p = x < low ? Float<W>{} : p;
  return x > high ? Splat<W>(__builtin_inff()) : p;
}

enum class Isa { kSse2, kAvx2, kAvx512 };

inline Isa BestIsa() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx512;
  }
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? Isa::kAvx2 : Isa::kSse2;
}

template <typename Body, typename... Args>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"), noinline)) void RunAvx512(
    Args... args) {
  Body::Run(args...);
}

template <typename Body, typename... Args>
__attribute__((target("avx2,fma"), noinline)) void RunAvx2(Args... args) {
  Body::Run(args...);
}

template <typename Body, typename... Args>
__attribute__((noinline)) void RunSse2(Args... args) {
  Body::Run(args...);
}

// Runs Body<W>::Run(args...) with the widest W that this CPU supports. `Local` works around GCC,
// which merges instances over templates of the same name in the unnamed namespaces of two files.
template <template <int> class Body, typename Local = Body<4>, typename... Args>
void Dispatch(Args... args) {
  static const Isa isa = BestIsa();
  switch (isa) {
    case Isa::kAvx512:
      return RunAvx512<Body<16>, Args...>(args...);
    case Isa::kAvx2:
      return RunAvx2<Body<8>, Args...>(args...);
    case Isa::kSse2:
      return RunSse2<Body<4>, Args...>(args...);
  }
}

}  // namespace espalier::simd
