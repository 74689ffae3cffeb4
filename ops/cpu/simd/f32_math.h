// Elementary functions on f32 without branches, tables or library calls, so that loops over them
// become vector code. Coefficients are weighted least-squares (near minimax) fits made for this
// file.
#pragma once

#include <bit>
#include <cstdint>

namespace espalier {

// x = n ln 2 + rest, |rest| <= ln 2 / 2; n is in the low bits of `rounded`.
constexpr float kRound = 12582912.0f;  // adding 1.5 * 2^23 leaves the nearest integer there
struct ReducedExponent {
  float rounded, rest;
};
inline ReducedExponent ReduceExponent(float x) {
  const float rounded = x * 1.44269504089f + kRound;
  const float n = rounded - kRound;
  // ln 2 in two parts, the first one with few bits, so that n * 0.693359375 is exact.
  return {rounded, (x - n * 0.693359375f) + n * 2.12194440e-4f};
}
// e^r
inline float ExpOfReduced(float r) {
  float q = 0.0013814602280035615f;
  q = q * r + 0.008368715643882751f;
  q = q * r + 0.04166838899254799f;
  q = q * r + 0.1666652113199234f;
  q = q * r + 0.4999999403953552f;
  return (q * r) * r + r + 1.0f;
}

// e^x; relative error below 2 units in the last place. Overflows to infinity, underflows through
// the subnormal numbers to zero, keeps NaN.
inline float FastExp(float x) {
  // Beyond these the result is infinite or zero anyway. Comparisons are false for NaN.
  x = x > 90.0f ? 90.0f : x;
  x = x < -105.0f ? -105.0f : x;
  const auto [rounded, r] = ReduceExponent(x);
  const float e = ExpOfReduced(r);
  // 2^n in two factors: n itself may lie outside the range of exponents.
  const uint32_t bits = std::bit_cast<uint32_t>(rounded) - std::bit_cast<uint32_t>(kRound);
  const int32_t half = static_cast<int32_t>(bits) >> 1;
  const uint32_t rest = bits - static_cast<uint32_t>(half);
  const float scale1 = std::bit_cast<float>((static_cast<uint32_t>(half) + 127u) << 23);
  const float scale2 = std::bit_cast<float>((rest + 127u) << 23);
  return e * scale1 * scale2;
}

// e^x for x <= 0 in fewer instructions: 0 where x < -87 (e^-87 is 1.6e-38). Undefined for NaN.
inline float FastExpOfNegative(float x) {
  const ReducedExponent reduced = ReduceExponent(x);
  // A normal number: the exponent can be added to its bits.
  const float e = std::bit_cast<float>(std::bit_cast<uint32_t>(ExpOfReduced(reduced.rest)) +
                                       (std::bit_cast<uint32_t>(reduced.rounded) << 23));
  return x < -87.0f ? 0.0f : e;
}

// 2 atanh(s) = log((1 + s) / (1 - s)) without its first term: s^3 * series(s^2), for s^2 <= 1/9.
inline float AtanhRest(float s) {
  const float q = s * s;
  float p = 0.13333333f;
  p = p * q + 0.15384615f;
  p = p * q + 0.18181819f;
  p = p * q + 0.22222222f;
  p = p * q + 0.2857143f;
  p = p * q + 0.4f;
  p = p * q + 0.6666667f;
  return s * q * p;
}

// Natural logarithm of a positive normal number; relative error below 4 units in the last place.
// Keeps NaN.
inline float FastLog(float x) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const uint32_t shifted = std::bit_cast<uint32_t>(x) - 0x3f3504f3u;
  const float e = static_cast<float>(static_cast<int32_t>(shifted) >> 23);
  const float m = std::bit_cast<float>((shifted & 0x007fffffu) + 0x3f3504f3u);
  const float s = (m - 1.0f) / (m + 1.0f);
  // The last difference is 0, or NaN where x is.
  return e * 0.693359375f + (2.0f * s + (AtanhRest(s) - e * 2.12194440e-4f)) + (x - x);
}

// log(1 + x) for x in [0, 1], with a small relative error next to 0 too.
inline float FastLog1p(float x) {
  const float s = x / (2.0f + x);
  return 2.0f * s + AtanhRest(s);
}

inline float FastSigmoid(float x) { return 1.0f / (1.0f + FastExp(-x)); }

inline float FastTanh(float x) {
  const float magnitude = x < 0.0f ? -x : x;
  const float x2 = x * x;
  float p = -0.005666964687407017f;
  p = p * x2 + 0.020606165751814842f;
  p = p * x2 - 0.05373000353574753f;
  p = p * x2 + 0.13331331312656403f;
  p = p * x2 - 0.33333277702331543f;
  const float small = x + x * (x2 * p);
  const float large = 1.0f - 2.0f / (FastExp(2.0f * magnitude) + 1.0f);
  return magnitude < 0.625f ? small : (x < 0.0f ? -large : large);
}

// The standard normal distribution at x: its density, and its integral from minus infinity with a
// small relative error in the lower tail too. With z = |x| / sqrt(2), erfc(z) = exp(-z^2) t P(t),
// where t = 1 / (1 + 0.38 z); both results share one exponential.
struct Normal {
  float density;
  float cumulative;
};

inline Normal FastNormal(float x) {
  const float magnitude = x < 0.0f ? -x : x;
  const float t = 1.0f / (1.0f + 0.268700576851f * magnitude);
  float p = 0.05896538868546486f;
  p = p * t - 0.2622726261615753f;
  p = p * t + 0.36384081840515137f;
  p = p * t - 0.1614314168691635f;
  p = p * t + 0.23000259697437286f;
  p = p * t + 0.13866111636161804f;
  p = p * t + 0.20390339195728302f;
  p = p * t + 0.21391983330249786f;
  p = p * t + 0.2144109308719635f;
  const float e = FastExpOfNegative(-0.5f * x * x);
  const float tail = 0.5f * t * p * e;
  return {0.398942280401f * e, x < 0.0f ? tail : 1.0f - tail};
}

}  // namespace espalier
