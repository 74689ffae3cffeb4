#include "serving/sampling/distribution.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "serving/sampling/truncation.h"
#include "serving/sampling/vocab_simd.h"

namespace espalier {
namespace {

// Returns the token of the highest logit.
absl::StatusOr<int> Check(const float* logits, int vocabulary) {
  const LogitMax highest = FindLogitMax(logits, vocabulary);
  if (highest.numbers) return highest.token;
  const float* const wrong =
      std::find_if(logits, logits + vocabulary, [](float logit) { return !(logit < INFINITY); });
  return absl::InternalError(absl::StrCat("the model's logit of token ", wrong - logits, " is ",
                                          *wrong,
                                          ", expected a finite number: are the weights intact?"));
}

}  // namespace

absl::Status ValidateSampling(const SamplingParameters& parameters) {
  if (!(parameters.temperature >= 0 && parameters.temperature <= 100)) {
    return absl::InvalidArgumentError(
        absl::StrCat("temperature is ", parameters.temperature, ", expected 0 (greedy) to 100"));
  }
  if (!(parameters.top_p > 0 && parameters.top_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_p is ", parameters.top_p, ", expected more than 0 and at most 1"));
  }
  if (parameters.top_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k is ", parameters.top_k, ", expected 0 (off) or more"));
  }
  if (!(parameters.min_p >= 0 && parameters.min_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_p is ", parameters.min_p, ", expected 0 (off) to 1"));
  }
  if (!(parameters.typical_p > 0 && parameters.typical_p <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("typical_p is ", parameters.typical_p,
                                                   ", expected more than 0 and at most 1 (off)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Argmax(const float* logits, int vocabulary) {
  return Check(logits, vocabulary);
}

absl::StatusOr<Distribution> SamplingDistribution(const float* logits, int vocabulary,
                                                  const SamplingParameters& parameters) {
  Distribution p(vocabulary, 0.0);
  if (parameters.greedy() || !parameters.keeps_all()) {
    const auto possible = PossibleTokens(logits, vocabulary, parameters);
    if (!possible.ok()) return possible.status();
    for (const TokenProbability& choice : *possible) p[choice.token] = choice.probability;
    return p;
  }
  const absl::StatusOr<int> best = Check(logits, vocabulary);
  if (!best.ok()) return best.status();
  if (logits[*best] == -INFINITY) {
    p[*best] = 1;
    return p;
  }
  const double mass =
      Exponentials(logits, vocabulary, logits[*best], parameters.temperature, p.data());
  for (double& value : p) value /= mass;
  return p;
}

int SampleFrom(const Distribution& distribution, double uniform) {
  double sum = 0;
  int last = 0;
  for (int i = 0; i < static_cast<int>(distribution.size()); ++i) {
    if (distribution[i] <= 0) continue;
    sum += distribution[i];
    last = i;
    if (uniform < sum) return i;
  }
  return last;
}

}  // namespace espalier
