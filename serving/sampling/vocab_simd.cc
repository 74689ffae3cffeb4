#include "serving/sampling/vocab_simd.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace espalier {
namespace {

using Doubles = double __attribute__((vector_size(32)));
using Bits = uint64_t __attribute__((vector_size(32)));
using Mask = int64_t __attribute__((vector_size(32)));
using Floats = float __attribute__((vector_size(32)));
using Ints = int32_t __attribute__((vector_size(32)));
using HalfFloats = float __attribute__((vector_size(16)));

constexpr int kFloats = 8, kDoubles = 4;  // per vector
constexpr int kBlock = 1024;

// Compiled once per instruction set.
#define ESPALIER_WIDE static inline __attribute__((always_inline))

ESPALIER_WIDE LogitMax FindHighest(const float* logits, int n) {
  float most = -INFINITY;
  int block = 0;  // of the maximum
  bool numbers = true;
  int begin = 0;
  for (; begin + kBlock <= n; begin += kBlock) {
    Floats best = Floats{} - INFINITY;
    Ints fine = Ints{} - 1;
    for (int i = begin; i < begin + kBlock; i += kFloats) {
      Floats x;
      std::memcpy(&x, logits + i, sizeof(x));
      fine &= x < INFINITY;
      best = x > best ? x : best;
    }
    float here = -INFINITY;
    for (int lane = 0; lane < kFloats; ++lane) {
      numbers = numbers && fine[lane] != 0;
      here = std::max(here, best[lane]);
    }
    if (here > most) {
      most = here;
      block = begin;
    }
  }
  for (int i = begin; i < n; ++i) {
    numbers = numbers && logits[i] < INFINITY;
    if (logits[i] > most) {
      most = logits[i];
      block = begin;
    }
  }
  const float* const at = std::find(logits + block, logits + n, most);
  return {at == logits + n ? 0 : static_cast<int>(at - logits), numbers};
}

// REQUIRES: no logit is NaN.
ESPALIER_WIDE float FindMaximum(const float* logits, int n) {
  Floats best = Floats{} - INFINITY, x;
  int i = 0;
  for (; i + kFloats <= n; i += kFloats) {
    std::memcpy(&x, logits + i, sizeof(x));
    best = x > best ? x : best;
  }
  float most = -INFINITY;
  for (int lane = 0; lane < kFloats; ++lane) most = std::max(most, best[lane]);
  for (; i < n; ++i) most = std::max(most, logits[i]);
  return most;
}

// One pass: few blocks exceed the last of the tokens kept.
ESPALIER_WIDE std::vector<int> FindHighestTokens(const float* logits, int n, int count) {
  std::vector<int> out;
  const size_t most = std::clamp(count, 0, n);
  if (most == 0) return out;
  out.reserve(most + 1);
  const auto before = [logits](int a, int b) { return logits[a] > logits[b]; };
  for (int begin = 0; begin < n; begin += kBlock) {
    const int end = std::min(n, begin + kBlock);
    const bool full = out.size() == most;
    if (full && !(FindMaximum(logits + begin, end - begin) > logits[out.back()])) continue;
    for (int i = begin; i < end; ++i) {
      if (out.size() == most && !(logits[i] > logits[out.back()])) continue;
      out.insert(std::upper_bound(out.begin(), out.end(), i, before), i);
      if (out.size() > most) out.pop_back();
    }
  }
  return out;
}

// One pass: most vectors contain none.
ESPALIER_WIDE std::vector<int> FindTokensFrom(const float* logits, int n, float least) {
  std::vector<int> out;
  Floats x;
  int i = 0;
  for (; i + kFloats <= n; i += kFloats) {
    std::memcpy(&x, logits + i, sizeof(x));
    const Mask some = reinterpret_cast<Mask>(x >= least);
    if ((some[0] | some[1] | some[2] | some[3]) == 0) continue;
    for (int j = i; j < i + kFloats; ++j) {
      if (logits[j] >= least) out.push_back(j);
    }
  }
  for (; i < n; ++i) {
    if (logits[i] >= least) out.push_back(i);
  }
  return out;
}

ESPALIER_WIDE int FindCountAbove(const float* logits, int n, float least) {
  Ints counts = {};
  Floats x;
  int i = 0;
  for (; i + kFloats <= n; i += kFloats) {
    std::memcpy(&x, logits + i, sizeof(x));
    counts -= x > least;
  }
  int count = 0;
  for (int lane = 0; lane < kFloats; ++lane) count += counts[lane];
  for (; i < n; ++i) count += logits[i] > least ? 1 : 0;
  return count;
}

// exp(y) = 2^k exp(r), r = y - k log 2 by two parts of log 2 (Cody and Waite 1980), |r| < 0.35, of
// which the Taylor polynomial of degree 13 is within 1e-17. kUnit: the temperature is 1.
template <bool kUnit>
ESPALIER_WIDE void ExponentialsOf(const HalfFloats& x, float highest, double temperature,
                                  Doubles* out) {
  constexpr double kLeast = -700;
  constexpr double kRound = 0x1.8p52;  // adding and subtracting it rounds to an integer
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLog2High = 0x1.62e42fefa3800p-1, kLog2Low = 0x1.ef35793c76730p-45;
  constexpr double kFactors[] = {1.0 / 479001600,
                                 1.0 / 39916800,
                                 1.0 / 3628800,
                                 1.0 / 362880,
                                 1.0 / 40320,
                                 1.0 / 5040,
                                 1.0 / 720,
                                 1.0 / 120,
                                 1.0 / 24,
                                 1.0 / 6,
                                 0.5,
                                 1,
                                 1};
  Doubles y = __builtin_convertvector(x, Doubles) - highest;
  if (!kUnit) y /= temperature;
  const Mask nothing = !(y >= kLeast);
  y = nothing ? Doubles{} : y;
  const Doubles shifted = y * kLog2E + kRound;
  const Doubles k = shifted - kRound;
  const Doubles r = (y - k * kLog2High) - k * kLog2Low;
  Doubles e = Doubles{} + 1.0 / 6227020800;
  for (const double factor : kFactors) e = e * r + factor;
  const Bits scaled = reinterpret_cast<Bits>(e) + (reinterpret_cast<Bits>(shifted) << 52);
  *out = nothing ? Doubles{} : reinterpret_cast<Doubles>(scaled);
}

template <bool kOut, bool kUnit>
// Division would take as long as everything else, and most requests have temperature 1.
ESPALIER_WIDE double FindExponentialsAs(const float* logits, int n, float highest,
                                        double temperature, double* out) {
  Doubles sums = {}, e;
  HalfFloats x;
  int i = 0;
  for (; i + kDoubles <= n; i += kDoubles) {
    std::memcpy(&x, logits + i, sizeof(x));
    ExponentialsOf<kUnit>(x, highest, temperature, &e);
    sums += e;
    if (kOut) std::memcpy(out + i, &e, sizeof(e));
  }
  if (i < n) {
    x = HalfFloats{} - INFINITY;
    std::memcpy(&x, logits + i, sizeof(float) * static_cast<size_t>(n - i));
    ExponentialsOf<kUnit>(x, highest, temperature, &e);
    sums += e;
    if (kOut) std::memcpy(out + i, &e, sizeof(double) * static_cast<size_t>(n - i));
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Divisions take as long as all the rest, and most requests have none.
ESPALIER_WIDE double FindExponentials(const float* logits, int n, float highest, double temperature,
                                      double* out) {
  if (temperature == 1) {
    return out == nullptr ? FindExponentialsAs<false, true>(logits, n, highest, 1, out)
                          : FindExponentialsAs<true, true>(logits, n, highest, 1, out);
  }
  return out == nullptr ? FindExponentialsAs<false, false>(logits, n, highest, temperature, out)
                        : FindExponentialsAs<true, false>(logits, n, highest, temperature, out);
}

ESPALIER_WIDE int FindEarlyClocks(uint64_t begin, int token, const double* weights, int n,
                                  double time, int* out) {
  Bits at;
  for (int lane = 0; lane < kDoubles; ++lane) {
    at[lane] =
        begin + (static_cast<uint64_t>(token) + static_cast<uint64_t>(lane) + 1) * kClockStep;
  }
  int count = 0;
  for (int i = 0; i < n; i += kDoubles, at += kDoubles * kClockStep) {
    Bits z = (at ^ (at >> 30)) * kClockMix[0];
    z = (z ^ (z >> 27)) * kClockMix[1];
    const Doubles uniform = reinterpret_cast<Doubles>(((z ^ (z >> 31)) >> 12) | kClockOne) - 1.0;
    Doubles weight = {};
    if (i + kDoubles <= n) {
      std::memcpy(&weight, weights + i, sizeof(weight));
    } else {
      for (int lane = 0; i + lane < n; ++lane) weight[lane] = weights[i + lane];
    }
    const Mask early = uniform < time * weight;
    if ((early[0] | early[1] | early[2] | early[3]) == 0) continue;
    for (int lane = 0; lane < kDoubles; ++lane) {
      if (early[lane] != 0) out[count++] = i + lane;
    }
  }
  return count;
}

#if defined(__x86_64__)
#define ESPALIER_AVX2 __attribute__((target("avx2,fma")))
ESPALIER_AVX2 LogitMax HighestByAvx2(const float* logits, int n) { return FindHighest(logits, n); }
ESPALIER_AVX2 std::vector<int> HighestTokensByAvx2(const float* logits, int n, int count) {
  return FindHighestTokens(logits, n, count);
}
ESPALIER_AVX2 std::vector<int> TokensFromByAvx2(const float* logits, int n, float least) {
  return FindTokensFrom(logits, n, least);
}
ESPALIER_AVX2 int EarlyClocksByAvx2(uint64_t begin, int token, const double* weights, int n,
                                    double time, int* out) {
  return FindEarlyClocks(begin, token, weights, n, time, out);
}
ESPALIER_AVX2 int CountAboveByAvx2(const float* logits, int n, float least) {
  return FindCountAbove(logits, n, least);
}
ESPALIER_AVX2 double ExponentialsByAvx2(const float* logits, int n, float highest,
                                        double temperature, double* out) {
  return FindExponentials(logits, n, highest, temperature, out);
}
bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
int EarlyClocksByAvx2(uint64_t begin, int token, const double* weights, int n, double time,
                      int* out) {
  return FindEarlyClocks(begin, token, weights, n, time, out);
}
std::vector<int> TokensFromByAvx2(const float* logits, int n, float least) {
  return FindTokensFrom(logits, n, least);
}
LogitMax HighestByAvx2(const float* logits, int n) { return FindHighest(logits, n); }
std::vector<int> HighestTokensByAvx2(const float* logits, int n, int count) {
  return FindHighestTokens(logits, n, count);
}
int CountAboveByAvx2(const float* logits, int n, float least) {
  return FindCountAbove(logits, n, least);
}
double ExponentialsByAvx2(const float* logits, int n, float highest, double temperature,
                          double* out) {
  return FindExponentials(logits, n, highest, temperature, out);
}
bool HasAvx2() { return false; }
#endif

}  // namespace

LogitMax FindLogitMax(const float* logits, int vocabulary) {
  return HasAvx2() ? HighestByAvx2(logits, vocabulary) : FindHighest(logits, vocabulary);
}

std::vector<int> TopKTokens(const float* logits, int vocabulary, int count) {
  return HasAvx2() ? HighestTokensByAvx2(logits, vocabulary, count)
                   : FindHighestTokens(logits, vocabulary, count);
}

std::vector<int> TokensAtLeast(const float* logits, int vocabulary, float least) {
  return HasAvx2() ? TokensFromByAvx2(logits, vocabulary, least)
                   : FindTokensFrom(logits, vocabulary, least);
}

int EarlyArrivals(uint64_t begin, int token, const double* weights, int n, double time, int* out) {
  return HasAvx2() ? EarlyClocksByAvx2(begin, token, weights, n, time, out)
                   : FindEarlyClocks(begin, token, weights, n, time, out);
}

int CountAbove(const float* logits, int vocabulary, float least) {
  return HasAvx2() ? CountAboveByAvx2(logits, vocabulary, least)
                   : FindCountAbove(logits, vocabulary, least);
}

double Exponentials(const float* logits, int vocabulary, float highest, double temperature,
                    double* out) {
  return HasAvx2() ? ExponentialsByAvx2(logits, vocabulary, highest, temperature, out)
                   : FindExponentials(logits, vocabulary, highest, temperature, out);
}

}  // namespace espalier
