#include "serving/sampling/truncation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

#include "serving/sampling/vocab_simd.h"

namespace espalier {
namespace {

constexpr size_t kFewSorted = 64;
constexpr int kFewTop = 256;  // largest top_k found in one pass
// top_p first looks at tokens above kFirst times the highest probability, then extends that limit
// by factors of kFurther.
constexpr double kFirst = 1. / 64;
constexpr double kFurther = 64;

struct ByProbability {
  bool operator()(const TokenProbability& a, const TokenProbability& b) const {
    return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
  }
};

// Returns the first `count` tokens by falling logit, equals by rising token; sorted by token.
std::vector<int> Top(const float* logits, int vocabulary, int count) {
  std::vector<int> tokens;
  if (count <= kFewTop) {
    tokens = TopKTokens(logits, vocabulary, count);
    std::sort(tokens.begin(), tokens.end());
    return tokens;
  }
  tokens.resize(vocabulary);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::nth_element(tokens.begin(), tokens.begin() + count, tokens.end(), [logits](int a, int b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  tokens.resize(count);
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

// The tokens that are not cut yet. Probabilities are relative to the most probable token's until
// the end.
class Truncation {
 public:
  Truncation(const float* logits, int vocabulary, float highest, double temperature)
      : logits_(logits), vocabulary_(vocabulary), highest_(highest), temperature_(temperature) {}

  void TopK(int k) {
    if (k <= 0 || k >= vocabulary_) return;
    List(Top(logits_, vocabulary_, k));
  }

  void TopP(double share) {
    if (share >= 1) return;
    double mass = 0;
    if (listed_) {
      mass = Mass();
    } else {
      mass = Exponentials(logits_, vocabulary_, highest_, temperature_, nullptr);
      // All tokens below this together have at most half the mass that is cut off, so that rounding
      // does not matter.
      const double enough = 0.5 * (1 - share) * mass / vocabulary_;
      for (double least = std::max(kFirst, enough);; least = std::max(least / kFurther, enough)) {
        ListFrom(least);
        if (least <= enough || Mass() >= share * mass) break;
      }
    }
    Reach(share * mass, ByProbability());
  }

  void MinP(double share) {
    if (share <= 0) return;
    if (!listed_) ListFrom(share);
    std::erase_if(left_,
                  [&](const TokenProbability& choice) { return choice.probability < share; });
  }

  void Typical(double share) {
    if (share >= 1) return;
    if (!listed_) ListAll();
    const double mass = Mass();
    double entropy = 0;
    for (const TokenProbability& choice : left_) {
      const double p = choice.probability / mass;
      entropy -= p * std::log(p);
    }
    const auto distance = [&](const TokenProbability& choice) {
      return std::abs(-std::log(choice.probability / mass) - entropy);
    };
    Reach(share * mass, [&](const TokenProbability& a, const TokenProbability& b) {
      const double of_a = distance(a), of_b = distance(b);
      return of_a != of_b ? of_a < of_b : a.token < b.token;
    });
  }

  std::vector<TokenProbability> Take() && {
    if (!listed_) ListAll();
    const double mass = Mass();
    for (TokenProbability& choice : left_) choice.probability /= mass;
    return std::move(left_);
  }

 private:
  void List(const std::vector<int>& tokens) {
    listed_ = true;
    std::vector<float> logits;
    logits.reserve(tokens.size());
    for (const int token : tokens) logits.push_back(logits_[token]);
    std::vector<double> weights(tokens.size());
    Exponentials(logits.data(), static_cast<int>(logits.size()), highest_, temperature_,
                 weights.data());
    left_.clear();
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (weights[i] > 0) left_.push_back({tokens[i], weights[i]});
    }
  }
  // Lists tokens of at least this weight, and some below it by rounding.
  void ListFrom(double least) {
    const auto logit = static_cast<float>(highest_ + temperature_ * std::log(least));
    List(TokensAtLeast(logits_, vocabulary_, std::nextafter(logit, -INFINITY)));
  }
  void ListAll() {
    List(TokensAtLeast(logits_, vocabulary_, std::numeric_limits<float>::lowest()));
  }

  double Mass() const {
    double mass = 0;
    for (const TokenProbability& choice : left_) mass += choice.probability;
    return mass;
  }

  // Keeps the fewest tokens that reach the mass, by bisection instead of sorting (a flat
  // distribution keeps half a vocabulary).
  template <typename Before>
  void Reach(double wanted, const Before& before) {
    std::vector<TokenProbability> order = left_;
    const auto at = [&](size_t i) { return order.begin() + static_cast<int64_t>(i); };
    size_t begin = 0, end = order.size();
    double sum = 0;  // of those before `begin`
    while (end - begin > kFewSorted) {
      const size_t middle = begin + (end - begin) / 2;
      std::nth_element(at(begin), at(middle), at(end), before);
      double half = sum;
      for (size_t i = begin; i < middle; ++i) half += order[i].probability;
      if (half >= wanted) {
        end = middle;
      } else {
        begin = middle;
        sum = half;
      }
    }
    std::sort(at(begin), at(end), before);
    while (begin < end && (begin == 0 || sum < wanted)) sum += order[begin++].probability;
    if (begin == order.size()) return;
    std::erase_if(left_,
                  [&](const TokenProbability& choice) { return !before(choice, order[begin]); });
  }

  const float* const logits_;
  const int vocabulary_;
  const float highest_;
  const double temperature_;
  bool listed_ = false;
  std::vector<TokenProbability> left_;  // by rising token
};

}  // namespace

absl::StatusOr<std::vector<TokenProbability>> PossibleTokens(const float* logits, int vocabulary,
                                                             const SamplingParameters& parameters) {
  const absl::StatusOr<int> best = Argmax(logits, vocabulary);
  if (!best.ok()) return best.status();
  if (parameters.greedy() || logits[*best] == -INFINITY) return {{{*best, 1}}};
  Truncation cut(logits, vocabulary, logits[*best], parameters.temperature);
  cut.TopK(parameters.top_k);
  cut.TopP(parameters.top_p);
  cut.MinP(parameters.min_p);
  cut.Typical(parameters.typical_p);
  return std::move(cut).Take();
}

}  // namespace espalier
