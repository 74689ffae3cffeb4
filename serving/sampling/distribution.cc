#include "serving/sampling/distribution.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status CheckLogits(const float* logits, int vocabulary) {
  for (int i = 0; i < vocabulary; ++i) {
    if (std::isnan(logits[i]) || logits[i] == INFINITY) {
      return absl::InternalError(
          absl::StrCat("the model's logit of token ", i, " is ", logits[i],
                       ", expected a finite number: are the weights intact?"));
    }
  }
  return absl::OkStatus();
}

int ArgmaxOfChecked(const float* logits, int vocabulary) {
  return static_cast<int>(std::max_element(logits, logits + vocabulary) - logits);
}

// Zeroes all but the most probable tokens: at most `top_k` of them (0: any number) and no more than
// are needed for a share `top_p` of the mass. Returns the mass that is left.
double Truncate(Distribution& p, int top_k, double top_p) {
  const int n = static_cast<int>(p.size());
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
  int kept = top_k > 0 ? std::min(top_k, n) : n;
  double mass = 0;
  for (int i = 0; i < kept; ++i) mass += p[order[i]];
  if (top_p < 1) {
    double sum = 0;
    int i = 0;
    while (i < kept && sum < top_p * mass) sum += p[order[i++]];
    kept = std::max(i, 1);
    mass = sum;
  }
  for (int i = kept; i < n; ++i) p[order[i]] = 0;
  return mass;
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
  return absl::OkStatus();
}

absl::StatusOr<int> Argmax(const float* logits, int vocabulary) {
  if (absl::Status status = CheckLogits(logits, vocabulary); !status.ok()) return status;
  return ArgmaxOfChecked(logits, vocabulary);
}

absl::StatusOr<Distribution> SamplingDistribution(const float* logits, int vocabulary,
                                                  const SamplingParameters& parameters) {
  if (absl::Status status = CheckLogits(logits, vocabulary); !status.ok()) return status;
  Distribution p(vocabulary, 0.0);
  const int best = ArgmaxOfChecked(logits, vocabulary);
  if (parameters.greedy() || logits[best] == -INFINITY) {
    p[best] = 1;
    return p;
  }
  double mass = 0;
  for (int i = 0; i < vocabulary; ++i) {
    p[i] = std::exp((static_cast<double>(logits[i]) - logits[best]) / parameters.temperature);
    mass += p[i];
  }
  if (parameters.top_k > 0 || parameters.top_p < 1) {
    mass = Truncate(p, parameters.top_k, parameters.top_p);
  }
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
