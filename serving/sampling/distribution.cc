#include "serving/sampling/distribution.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "serving/sampling/wide.h"

namespace espalier {
namespace {

// The token of the highest logit.
absl::StatusOr<int> Check(const float* logits, int vocabulary) {
  const Highest highest = HighestOf(logits, vocabulary);
  if (highest.numbers) return highest.token;
  const float* const wrong =
      std::find_if(logits, logits + vocabulary, [](float logit) { return !(logit < INFINITY); });
  return absl::InternalError(absl::StrCat("the model's logit of token ", wrong - logits, " is ",
                                          *wrong,
                                          ", expected a finite number: are the weights intact?"));
}

// Puts the first `count` in order in front, the rest after them in any order.
template <typename Before>
void SortFront(std::vector<int>& order, int sorted, int count, const Before& before) {
  if (count < static_cast<int>(order.size())) {
    std::nth_element(order.begin() + sorted, order.begin() + count, order.end(), before);
  }
  std::sort(order.begin() + sorted, order.begin() + count, before);
}

// How many tokens from the front reach `share` of `mass`; sorts only as many as it needs to know
// that (a vocabulary has 10^5 tokens, of which a few carry nearly all mass).
template <typename Before>
int ReachMass(const Distribution& p, std::vector<int>& order, int sorted, double wanted,
              const Before& before) {
  const int n = static_cast<int>(order.size());
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    if (i >= sorted) {
      const int more = std::min(n, std::max(64, 4 * sorted));
      SortFront(order, sorted, more, before);
      sorted = more;
    }
    if (sum >= wanted) return std::max(i, 1);
    sum += p[order[i]];
  }
  return n;
}

// Tokens that are still possible, and their probabilities renormalised.
class Truncation {
  auto ByProbability() const {
    return [this](int a, int b) { return p_[a] != p_[b] ? p_[a] > p_[b] : a < b; };
  }

 public:
  explicit Truncation(Distribution& p) : p_(p) {}

  void TopK(int k) {
    if (k <= 0 || k >= static_cast<int>(p_.size())) return;
    Enlist(LeastOfTop(k));
    k = std::min(k, static_cast<int>(order_.size()));  // fewer may be possible
    SortFront(order_, 0, k, ByProbability());
    sorted_ = k;
    Keep(k);
  }

  void TopP(double share) {
    if (share >= 1) return;
    // All that are less probable than this together have less than the mass that is cut off (half
    // of it, so that rounding does not matter).
    Enlist(0.5 * (1 - share) / static_cast<double>(p_.size()));
    Keep(ReachMass(p_, order_, sorted_, share, ByProbability()));
  }

  void MinP(double share) {
    if (share <= 0) return;
    const double most = *std::max_element(p_.begin(), p_.end());
    Enlist(share * most);
    const auto end = std::stable_partition(order_.begin(), order_.end(),
                                           [&](int i) { return p_[i] >= share * most; });
    Keep(static_cast<int>(end - order_.begin()));
  }

  void Typical(double share) {
    if (share >= 1) return;
    Enlist(0);
    double entropy = 0;
    for (const int i : order_) {
      if (p_[i] > 0) entropy -= p_[i] * std::log(p_[i]);
    }
    std::vector<double> distance(p_.size(), INFINITY);
    for (const int i : order_) {
      if (p_[i] > 0) distance[i] = std::abs(-std::log(p_[i]) - entropy);
    }
    const auto before = [&](int a, int b) {
      return distance[a] != distance[b] ? distance[a] < distance[b] : a < b;
    };
    Keep(ReachMass(p_, order_, 0, share, before));
  }

 private:
  // The k-th highest probability: one pass, in which few tokens are among the best so far.
  double LeastOfTop(int k) const {
    std::vector<double> best(p_.begin(), p_.begin() + k);  // a heap, the least in front
    std::make_heap(best.begin(), best.end(), std::greater<>());
    for (size_t i = static_cast<size_t>(k); i < p_.size(); ++i) {
      if (p_[i] <= best.front()) continue;
      std::pop_heap(best.begin(), best.end(), std::greater<>());
      best.back() = p_[i];
      std::push_heap(best.begin(), best.end(), std::greater<>());
    }
    return best.front();
  }

  // The first time: the tokens that are possible and at least so probable; the others are cut.
  void Enlist(double least) {
    if (enlisted_) return;
    enlisted_ = true;
    for (size_t i = 0; i < p_.size(); ++i) {
      if (p_[i] > 0 && p_[i] >= least) {
        order_.push_back(static_cast<int>(i));
      } else {
        p_[i] = 0;
      }
    }
  }

  void Keep(int count) {
    for (size_t i = count; i < order_.size(); ++i) p_[order_[i]] = 0;
    order_.resize(count);
    sorted_ = std::min(sorted_, count);
    double mass = 0;
    for (const int i : order_) mass += p_[i];
    for (const int i : order_) p_[i] /= mass;
  }

  Distribution& p_;
  bool enlisted_ = false;
  std::vector<int> order_;
  int sorted_ = 0;  // as many are in order of falling probability
};

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
  const absl::StatusOr<int> best = Check(logits, vocabulary);
  if (!best.ok()) return best.status();
  Distribution p(vocabulary, 0.0);
  if (parameters.greedy() || logits[*best] == -INFINITY) {
    p[*best] = 1;
    return p;
  }
  const double mass =
      Exponentials(logits, vocabulary, logits[*best], parameters.temperature, p.data());
  for (double& value : p) value /= mass;
  if (parameters.top_k > 0 || parameters.top_p < 1 || parameters.min_p > 0 ||
      parameters.typical_p < 1) {
    Truncation cut(p);
    cut.TopK(parameters.top_k);
    cut.TopP(parameters.top_p);
    cut.MinP(parameters.min_p);
    cut.Typical(parameters.typical_p);
  }
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
