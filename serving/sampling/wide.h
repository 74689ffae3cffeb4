// Passes over the logits of a whole vocabulary, of which there are 10^5 for each token that is
// decided: in vectors, with the instructions that the machine has.
#pragma once

#include <vector>

namespace espalier {

struct Highest {
  int token = 0;         // of equals the lowest
  bool numbers = false;  // no logit is NaN or +infinity; otherwise the token says nothing
};
Highest HighestOf(const float* logits, int vocabulary);

// The first `count` by falling logit, equals by rising token. No logit is NaN; if one is, these
// are some tokens.
std::vector<int> HighestTokens(const float* logits, int vocabulary, int count);

// How many logits are above `least`.
int CountAbove(const float* logits, int vocabulary, float least);

// out[i] = exp((logits[i] - highest) / temperature), within 4e-16 of it; 0 below exp(-700). Returns
// their sum, which is all if `out` is null. No logit is NaN or above `highest`; the temperature is
// above 0.
double Exponentials(const float* logits, int vocabulary, float highest, double temperature,
                    double* out);

}  // namespace espalier
