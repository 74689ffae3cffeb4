// Vectorized passes over the logits of a whole vocabulary of 10^5 tokens, with the SIMD
// instructions of the machine.
#pragma once

#include <cstdint>
#include <vector>

namespace espalier {

// Constants of ExponentialClocks (gumbel_coupling.h).
inline constexpr uint64_t kClockStep = 0x9E3779B97F4A7C15;
inline constexpr uint64_t kClockMix[] = {0xBF58476D1CE4E5B9, 0x94D049BB133111EB};
inline constexpr uint64_t kClockOne = 0x3FF0000000000000;  // the bits of 1.0

struct LogitMax {
  int token = 0;         // the lowest of equals
  bool numbers = false;  // no logit is NaN or +infinity; if false, `token` is undefined
};
LogitMax FindLogitMax(const float* logits, int vocabulary);

// Returns the first `count` tokens by falling logit, equals by rising token. The result is
// undefined if a logit is NaN.
std::vector<int> TopKTokens(const float* logits, int vocabulary, int count);

// Returns the tokens with a logit of at least `least`, by rising token.
std::vector<int> TokensAtLeast(const float* logits, int vocabulary, float least);

// Returns the number of logits above `least`.
int CountAbove(const float* logits, int vocabulary, float least);

// Computes out[i] = exp((logits[i] - highest) / temperature) with an error of at most 4e-16; 0
// below exp(-700). Returns their sum; `out` may be null. REQUIRES: no logit is NaN or above
// `highest`; temperature > 0.
double Exponentials(const float* logits, int vocabulary, float highest, double temperature,
                    double* out);

// Finds which of n tokens, from `token` on, may arrive before `time`: those whose uniform number is
// below time * weight. Writes their offsets, ascending, to `out`, which has space for n, and
// returns their number.
int EarlyArrivals(uint64_t begin, int token, const double* weights, int n, double time, int* out);

}  // namespace espalier
