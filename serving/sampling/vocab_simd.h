// Passes over the logits of a whole vocabulary, of which there are 10^5 for each token that is
// decided: in vectors, with the instructions that the machine has.
#pragma once

#include <cstdint>
#include <vector>

namespace espalier {

// Of the clocks of ExponentialClocks (coupled.h).
inline constexpr uint64_t kClockStep = 0x9E3779B97F4A7C15;
inline constexpr uint64_t kClockMix[] = {0xBF58476D1CE4E5B9, 0x94D049BB133111EB};
inline constexpr uint64_t kClockOne = 0x3FF0000000000000;  // the bits of 1.0

struct LogitMax {
  int token = 0;         // of equals the lowest
  bool numbers = false;  // no logit is NaN or +infinity; otherwise the token says nothing
};
LogitMax FindLogitMax(const float* logits, int vocabulary);

// The first `count` by falling logit, equals by rising token. No logit is NaN; if one is, these
// are some tokens.
std::vector<int> TopKTokens(const float* logits, int vocabulary, int count);

// Those whose logit is at least `least`, by rising token.
std::vector<int> TokensAtLeast(const float* logits, int vocabulary, float least);

// How many logits are above `least`.
int CountAbove(const float* logits, int vocabulary, float least);

// out[i] = exp((logits[i] - highest) / temperature), within 4e-16 of it; 0 below exp(-700). Returns
// their sum, which is all if `out` is null. No logit is NaN or above `highest`; the temperature is
// above 0.
double Exponentials(const float* logits, int vocabulary, float highest, double temperature,
                    double* out);

// Which of n tokens may ring before `time`, their clocks' uniform numbers being below time times
// their weight: offsets from `token`, the first one, rising. Returns how many; `out` has room for
// n.
int EarlyArrivals(uint64_t begin, int token, const double* weights, int n, double time, int* out);

}  // namespace espalier
