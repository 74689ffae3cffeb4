// Elementary functions of f32 computed in f64, because f32 arithmetic would lose digits: their
// error is far below an f32 rounding error. As in f32_math.h there are no branches, tables or
// library calls.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace espalier {

// Returns e^x; keeps NaN. Where the result is outside the range of f32 it is outside that range
// here, too. Relative error below 1e-11.
inline double ExpF64(double x) {
  x = x > 709.0 ? 709.0 : x;
  x = x < -708.0 ? -708.0 : x;
  // Adding 1.5 * 2^52 leaves round(x / ln 2) in the low bits of the sum.
  constexpr double kRound = 6755399441055744.0;
  const double rounded = x * 1.4426950408889634 + kRound;
  const double n = rounded - kRound;
  // ln 2 in two parts; n times the first one is exact.
  const double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
  // Taylor's series: |r| < 0.35.
  double q = 1.0 / 362880;
  q = q * r + 1.0 / 40320;
  q = q * r + 1.0 / 5040;
  q = q * r + 1.0 / 720;
  q = q * r + 1.0 / 120;
  q = q * r + 1.0 / 24;
  q = q * r + 1.0 / 6;
  q = q * r + 0.5;
  const double e = (q * r) * r + r + 1.0;
  return e * std::bit_cast<double>((std::bit_cast<uint64_t>(rounded) + 1023) << 52);
}

// Natural logarithm of a number that is not subnormal in f64. Relative error below 1e-11.
inline double LogF64(double x) {
  // x = 2^n * m, m in [sqrt(1/2), sqrt(2)).
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdu;
  constexpr uint64_t kExponent = uint64_t{0xfff} << 52;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const uint64_t power = bits - kSqrtHalf;
  const double m = std::bit_cast<double>(bits - (power & kExponent));
  // n + 1024 as the last bits of a number from 2^52 on.
  const uint64_t biased = (power + (uint64_t{1024} << 52)) >> 52;
  const double n = std::bit_cast<double>(biased | 0x4330000000000000u) - (0x1p52 + 1024);
  // log((1 + s) / (1 - s)) = 2 (s + s^3 / 3 + s^5 / 5 + ...), |s| < 0.172.
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double p = 2.0 / 13;
  p = p * z + 2.0 / 11;
  p = p * z + 2.0 / 9;
  p = p * z + 2.0 / 7;
  p = p * z + 2.0 / 5;
  p = p * z + 2.0 / 3;
  double y = n * 0.69314718055994531 + (s * (z * p) + 2.0 * s);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  y = x == 0.0 ? -kInfinity : y;
  y = x < kInfinity ? y : x;  // NaN too
  return x < 0.0 ? std::numeric_limits<double>::quiet_NaN() : y;
}

// log(1 + x) and e^x - 1, with a small relative error near zero too.
inline double Log1pF64(double x) {
  const double near = x - x * x * (0.5 - x * (1.0 / 3));
  const double far = LogF64(1.0 + x);
  return std::abs(x) < 1e-4 ? near : far;
}

inline double Expm1F64(double x) {
  const double near = x + x * x * (0.5 + x * (1.0 / 6));
  const double far = ExpF64(x) - 1.0;
  return std::abs(x) < 1e-4 ? near : far;
}

// a^b as IEEE 754's pow has it.
inline double PowF64(double a, double b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double magnitude = std::abs(a);
  double y = ExpF64(b * LogF64(magnitude));
  // f32's infinities and zeros; ExpF64 ends before f64's.
  y = y > 1e300 ? kInfinity : y;
  y = y < 1e-300 ? 0.0 : y;
  // Every f32 from 2^24 on is an even integer.
  const bool whole = std::abs(b) >= 0x1p25;
  const double clamped = whole ? 0.0 : b;
  const double half = 0.5 * clamped;
  const bool integer = clamped == std::rint(clamped);
  const bool odd = integer & (half != std::rint(half));
  const bool negative = std::signbit(a);
  y = negative & odd ? -y : y;
  y = (a < 0.0) & !integer & (magnitude < kInfinity) ? std::numeric_limits<double>::quiet_NaN() : y;
  y = (magnitude == 1.0) & (std::abs(b) == kInfinity) ? 1.0 : y;
  return (b == 0.0) | (a == 1.0) ? 1.0 : y;
}

inline float FastExpm1(float x) { return static_cast<float>(Expm1F64(x)); }
inline float FastPow(float a, float b) { return static_cast<float>(PowF64(a, b)); }

inline float FastSoftplus(float x) {
  const float positive = x < 0.0f ? 0.0f : x;
  return static_cast<float>(positive + Log1pF64(ExpF64(-std::abs(static_cast<double>(x)))));
}

inline float FastSinh(float x) {
  const double v = x;
  const double z = v * v;
  const double e = ExpF64(v);
  const double near = v + v * z * (1.0 / 6 + z * (1.0 / 120));
  const double far = 0.5 * e - 0.5 / e;
  return static_cast<float>(std::abs(v) < 1e-2 ? near : far);
}

inline float FastCosh(float x) {
  const double e = ExpF64(x);
  return static_cast<float>(0.5 * e + 0.5 / e);
}

inline float FastAsinh(float x) {
  const double v = std::abs(static_cast<double>(x));
  const double z = v * v;
  const double near = v - v * z * (1.0 / 6 - z * (3.0 / 40));
  const double far = LogF64(v + std::sqrt(z + 1.0));
  return static_cast<float>(std::copysign(v < 1e-2 ? near : far, static_cast<double>(x)));
}

inline float FastAcosh(float x) {
  const double v = x;
  const double y = LogF64(v + std::sqrt(v * v - 1.0));
  return static_cast<float>(v < 1.0 ? std::numeric_limits<double>::quiet_NaN() : y);
}

inline float FastAtanh(float x) {
  const double v = x;
  const double z = v * v;
  const double near = v + v * z * (1.0 / 3 + z * (1.0 / 5 + z * (1.0 / 7)));
  const double far = 0.5 * LogF64((1.0 + v) / (1.0 - v));
  return static_cast<float>(std::abs(v) < 1e-2 ? near : far);
}

// Trigonometric functions for angles within +-kAngleLimit: beyond it the multiple of pi / 2 that
// the range reduction subtracts has too many bits.
constexpr float kAngleLimit = 0x1p20f;

struct Angle {
  float sin;
  float cos;
};

inline Angle FastAngle(float x) {
  constexpr double kRound = 6755399441055744.0;  // as in ExpF64
  const double v = x;
  const double n = (v * 0.63661977236758134 + kRound) - kRound;
  // pi / 2 in two parts; n times the first one is exact.
  const float r = static_cast<float>((v - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34);
  const int32_t quadrant = static_cast<int32_t>(n);
  const float z = r * r;
  float s = -0.00019517244072631001f;
  s = s * z + 0.008332177996635437f;
  s = s * z - 0.16666655242443085f;
  s = s * z * r + r;
  float c = 2.4438375476165675e-05f;
  c = c * z - 0.0013887366512790322f;
  c = c * z + 0.04166664555668831f;
  c = c * z * z - 0.5f * z + 1.0f;
  const bool swapped = (quadrant & 1) != 0;
  const float sin = swapped ? c : s;
  const float cos = swapped ? s : c;
  return {(quadrant & 2) != 0 ? -sin : sin, ((quadrant + 1) & 2) != 0 ? -cos : cos};
}

inline float FastAtan(float x) {
  const float magnitude = std::abs(x);
  const float inverse = 1.0f / magnitude;
  const bool inverted = magnitude > 1.0f;
  const float t = inverted ? inverse : magnitude;
  const float z = t * t;
  float p = -0.0018265609396621585f;
  p = p * z + 0.011061535216867924f;
  p = p * z - 0.031450316309928894f;
  p = p * z + 0.05822918191552162f;
  p = p * z - 0.08419148623943329f;
  p = p * z + 0.10957471281290054f;
  p = p * z - 0.1426522582769394f;
  p = p * z + 0.19998636841773987f;
  p = p * z - 0.33333301544189453f;
  const float y = t + t * (z * p);
  return std::copysign(inverted ? 1.57079632679f - y : y, x);
}

inline float FastAsin(float x) { return FastAtan(x / std::sqrt((1.0f - x) * (1.0f + x))); }
inline float FastAcos(float x) { return 2.0f * FastAtan(std::sqrt((1.0f - x) / (1.0f + x))); }

}  // namespace espalier
