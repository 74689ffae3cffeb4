// Elementary functions on f32 without branches, tables or library calls, so that loops over them
// become vector code. Coefficients are weighted least-squares (near minimax) fits made for this
// file.
#pragma once

#include <bit>
#include <cstdint>

namespace espalier {

// e^x; relative error below 2 units in the last place. Overflows to infinity, underflows through
// the subnormal numbers to zero, keeps NaN.
inline float FastExp(float x) {
  // Beyond these the result is infinite or zero anyway. Comparisons are false for NaN.
  x = x > 90.0f ? 90.0f : x;
  x = x < -105.0f ? -105.0f : x;
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits of the sum.
  constexpr float kRound = 12582912.0f;
  const float rounded = x * 1.44269504089f + kRound;
  const float n = rounded - kRound;
  // ln 2 in two parts, the first one with few bits, so that n * 0.693359375 is exact.
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float q = 0.0013814602280035615f;
  q = q * r + 0.008368715643882751f;
  q = q * r + 0.04166838899254799f;
  q = q * r + 0.1666652113199234f;
  q = q * r + 0.4999999403953552f;
  const float e = (q * r) * r + r + 1.0f;
  // 2^n in two factors: n itself may lie outside the range of exponents.
  const uint32_t bits = std::bit_cast<uint32_t>(rounded) - std::bit_cast<uint32_t>(kRound);
  const int32_t half = static_cast<int32_t>(bits) >> 1;
  const uint32_t rest = bits - static_cast<uint32_t>(half);
  const float scale1 = std::bit_cast<float>((static_cast<uint32_t>(half) + 127u) << 23);
  const float scale2 = std::bit_cast<float>((rest + 127u) << 23);
  return e * scale1 * scale2;
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
  const float e = FastExp(-0.5f * x * x);
  const float tail = 0.5f * t * p * e;
  return {0.398942280401f * e, x < 0.0f ? tail : 1.0f - tail};
}

}  // namespace espalier
