// The distribution of sampled verification, by enumeration: visits every outcome of every draw and
// acceptance test with its weight. The resulting tokens must have exactly the LLM's distribution.
#include "serving/speculative/rejection_sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <utility>

#include "serving/sampling/counter_rng.h"
#include "serving/speculative/outcome_enumerator.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

constexpr double kExact = 1e-12;

using Path = std::vector<int>;
// A model as a function of the tokens after the root.
using TokenModel = std::function<Distribution(const Path&)>;

struct Ssm {
  TokenModel distribution;
  std::vector<int> children;  // per depth
  // If set: the number of draws after a path, up to the last depth of `children`.
  std::function<int(const Path&)> draws = nullptr;
  // Drops drawn first tokens, and all below, depending on the token: a deliberate error.
  std::function<bool(const Path&)> drops = nullptr;
  bool chosen = false;       // beam tokens instead of draws
  bool mislabelled = false;  // beam tokens, labeled as drawn: a deliberate error
  bool without_replacement = false;
  bool forgetful = false;  // without replacement, but not labeled so: a deliberate error
};

Path PathTo(const TokenTree& tree, int node) {
  Path path;
  for (; node != 0; node = tree.parent(node)) path.insert(path.begin(), tree.token(node));
  return path;
}

TokenTree DraftAll(const Ssm& ssm, int source, OutcomeEnumerator& branching) {
  TokenTree tree(0);
  std::vector<int> frontier = {0};
  for (const int by_depth : ssm.children) {
    std::vector<int> next;
    for (const int node : frontier) {
      const int children = ssm.draws ? ssm.draws(PathTo(tree, node)) : by_depth;
      const auto q = std::make_shared<const Distribution>(ssm.distribution(PathTo(tree, node)));
      Distribution rest = *q;
      std::vector<int> taken;
      for (int i = 0; i < children; ++i) {
        int token;
        if (ssm.without_replacement) {
          double left = 0;
          for (const double value : rest) left += value;
          if (!(left > 1e-9)) break;
          for (double& value : rest) value /= left;
          token = branching.Choose(rest);
          const int before = tree.size();
          EXPECT_EQ(before, tree.Propose(node, token, source, q,
                                         ssm.forgetful ? std::vector<int>() : taken));
          next.push_back(before);
          rest[token] = 0;
          taken.push_back(token);
          continue;
        }
        if (ssm.chosen) {
          token = static_cast<int>(std::max_element(rest.begin(), rest.end()) - rest.begin());
          rest[token] = -1;
        } else {
          token = branching.Choose(*q);
        }
        const int before = tree.size();
        const bool tagged = !ssm.chosen || ssm.mislabelled;
        const int child = tree.Propose(node, token, source, tagged ? q : nullptr);
        if (child == before) next.push_back(child);
      }
    }
    frontier = next;
  }
  if (!ssm.drops) return tree;
  TokenTree out(0);
  for (const Proposal& proposal : tree.proposals(0)) {
    if (ssm.drops(PathTo(tree, proposal.node))) continue;
    out.Propose(0, tree.token(proposal.node), proposal.source, proposal.drawn_from);
  }
  return out;
}

// The largest difference between the distribution of the first `length` tokens and the product of
// the targets. Shorter outputs are continued by the target, as later steps do.
double Deviation(const TokenModel& target, const std::vector<Ssm>& ssms, int vocabulary,
                 int length) {
  std::map<Path, long double> distribution;
  OutcomeEnumerator branching;
  do {
    TokenTree tree(0);
    for (size_t s = 0; s < ssms.size(); ++s) {
      EXPECT_TRUE(tree.Merge(DraftAll(ssms[s], static_cast<int>(s), branching)).ok());
    }
    EnumeratedRng rng(branching);
    const Verification out = *VerifySampled(
        tree, [&](int node) { return target(PathTo(tree, node)); }, rng);
    EXPECT_EQ(out.tokens.size(), out.path.size() + 1);
    Path tokens = out.tokens;
    tokens.resize(std::min<size_t>(tokens.size(), length));
    distribution[tokens] += branching.weight();
  } while (branching.Next());

  for (int n = 1; n < length; ++n) {
    for (auto it = distribution.begin(); it != distribution.end();) {
      if (static_cast<int>(it->first.size()) != n) {
        ++it;
        continue;
      }
      const Distribution p = target(it->first);
      for (int token = 0; token < vocabulary; ++token) {
        Path longer = it->first;
        longer.push_back(token);
        distribution[longer] += it->second * p[token];
      }
      it = distribution.erase(it);
    }
  }

  double most = 0;
  Path path(length, 0);
  for (;;) {
    long double expected = 1;
    for (int i = 0; i < length; ++i)
      expected *= target(Path(path.begin(), path.begin() + i))[path[i]];
    most = std::max(most, static_cast<double>(std::fabs(distribution[path] - expected)));
    int digit = 0;
    while (digit < length && ++path[digit] == vocabulary) path[digit++] = 0;
    if (digit == length) return most;
  }
}

// A model with another distribution for every path, by hashing it into logits.
TokenModel RandomModel(uint64_t seed, int vocabulary, double top_p = 1, int top_k = 0) {
  return [=](const Path& path) {
    std::mt19937_64 random(seed);
    for (const int token : path) random.seed(random() + token);
    std::vector<float> logits;
    for (int i = 0; i < vocabulary; ++i)
      logits.push_back(static_cast<float>(random() % 1000) / 300);
    return *SamplingDistribution(logits.data(), vocabulary,
                                 {.temperature = 0.8, .top_p = top_p, .top_k = top_k});
  };
}

TokenModel Fixed(Distribution p) {
  return [p](const Path&) { return p; };
}

TEST(RejectionSampling, WithoutDraftsIsTheTarget) {
  EXPECT_LT(Deviation(RandomModel(1, 4), {}, 4, 2), kExact);
}

TEST(RejectionSampling, OneSsmOfAnyShape) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const TokenModel p = RandomModel(seed, 3), q = RandomModel(seed + 100, 3);
    for (const std::vector<int>& shape :
         {std::vector<int>{1}, {2}, {3}, {1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
      EXPECT_LT(Deviation(p, {{q, shape}}, 3, static_cast<int>(shape.size()) + 1), kExact);
    }
  }
}

TEST(RejectionSampling, MoreDrawsThanTokensSoThatThereAreDuplicates) {
  EXPECT_LT(Deviation(RandomModel(3, 2), {{RandomModel(4, 2), {4, 2}}}, 2, 3), kExact);
  EXPECT_LT(Deviation(RandomModel(3, 4), {{RandomModel(4, 4), {4}}}, 4, 2), kExact);
}

TEST(RejectionSampling, TwoSsmsThatShareNodes) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const TokenModel p = RandomModel(seed, 3);
    const Ssm a{RandomModel(seed + 50, 3), {2, 1}}, b{RandomModel(seed + 90, 3), {1, 1}};
    EXPECT_LT(Deviation(p, {a, b}, 3, 3), kExact);
    const TokenModel p4 = RandomModel(seed, 4);
    EXPECT_LT(
        Deviation(p4, {{RandomModel(seed + 7, 4), {2}}, {RandomModel(seed + 8, 4), {2}}}, 4, 2),
        kExact);
  }
}

TEST(RejectionSampling, DisjointAndPartlySharedSupports) {
  const TokenModel p = Fixed({0.5, 0.5, 0, 0});
  EXPECT_LT(Deviation(p, {{Fixed({0, 0, 0.25, 0.75}), {2, 1}}}, 4, 3), kExact);
  EXPECT_LT(Deviation(p, {{Fixed({0, 0.3, 0.7, 0}), {3}}, {Fixed({1, 0, 0, 0}), {1}}}, 4, 2),
            kExact);
  EXPECT_LT(Deviation(p, {{Fixed({1, 0, 0, 0}), {2, 2}}}, 4, 3), kExact);
}

TEST(RejectionSampling, TopPAndTopKTruncation) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const TokenModel p = RandomModel(seed, 4, 0.7), q = RandomModel(seed + 10, 4, 0.7);
    EXPECT_LT(Deviation(p, {{q, {2, 1}}}, 4, 3), kExact);
    EXPECT_LT(Deviation(RandomModel(seed, 4, 1, 2), {{RandomModel(seed + 10, 4, 1, 2), {3}}}, 4, 2),
              kExact);
  }
}

TEST(RejectionSampling, ChosenTokensAloneAndBesideDrawnOnes) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const TokenModel p = RandomModel(seed, 3);
    const Ssm chosen{.distribution = RandomModel(seed + 20, 3), .children = {2, 1}, .chosen = true};
    const Ssm drawn{.distribution = RandomModel(seed + 30, 3), .children = {2, 1}};
    EXPECT_LT(Deviation(p, {chosen}, 3, 3), kExact);
    EXPECT_LT(Deviation(p, {chosen, drawn}, 3, 3), kExact);
    EXPECT_LT(Deviation(p, {drawn, chosen}, 3, 3), kExact);
  }
}

TEST(RejectionSampling, DrawsWithoutReplacement) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const TokenModel p = RandomModel(seed, 3);
    for (const std::vector<int>& shape :
         {std::vector<int>{1}, {2}, {3}, {5}, {2, 1}, {1, 2}, {2, 2}}) {
      const Ssm ssm{.distribution = RandomModel(seed + 60, 3),
                    .children = shape,
                    .without_replacement = true};
      EXPECT_LT(Deviation(p, {ssm}, 3, static_cast<int>(shape.size()) + 1), kExact);
    }
    // Beside draws with replacement, and where the supports are cut.
    const Ssm a{
        .distribution = RandomModel(seed + 60, 3), .children = {2, 1}, .without_replacement = true};
    const Ssm b{.distribution = RandomModel(seed + 70, 3), .children = {2}};
    EXPECT_LT(Deviation(p, {a, b}, 3, 3), kExact);
    const Ssm cut{
        .distribution = RandomModel(seed, 4, 0.7), .children = {4}, .without_replacement = true};
    EXPECT_LT(Deviation(RandomModel(seed + 9, 4, 0.8), {cut}, 4, 2), kExact);
  }
  const Ssm disjoint{
      .distribution = Fixed({0, 0, 0.25, 0.75}), .children = {3, 1}, .without_replacement = true};
  EXPECT_LT(Deviation(Fixed({0.5, 0.5, 0, 0}), {disjoint}, 4, 3), kExact);
}

// The shape of a tree may depend on the tokens above.
TEST(RejectionSampling, HowManyAreDrawnMayDependOnThePathToThem) {
  const auto draws = [](const Path& path) {
    if (path.empty()) return 2;
    return path.back() == 2 ? 0 : path.size() == 1 ? path.back() + 1 : 1 - path[0];
  };
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const TokenModel p = RandomModel(seed, 3);
    for (const bool without_replacement : {false, true}) {
      const Ssm ssm{.distribution = RandomModel(seed + 60, 3),
                    .children = {1, 1, 1},
                    .draws = draws,
                    .without_replacement = without_replacement};
      EXPECT_LT(Deviation(p, {ssm}, 3, 4), kExact);
      const Ssm chosen{
          .distribution = RandomModel(seed + 20, 3), .children = {1, 1}, .chosen = true};
      EXPECT_LT(Deviation(p, {chosen, ssm}, 3, 3), kExact);
    }
  }
}

TEST(RejectionSampling, DetectsDrawsDroppedByTheirTokens) {
  const Ssm wrong{.distribution = RandomModel(120, 3),
                  .children = {1},
                  .drops = [](const Path& path) { return path.back() == 2; }};
  EXPECT_GT(Deviation(RandomModel(1, 3), {wrong}, 3, 1), 0.003);
}

TEST(RejectionSampling, DetectsDrawsWithoutReplacementTakenAsIndependent) {
  const Ssm wrong{.distribution = RandomModel(120, 3),
                  .children = {2},
                  .without_replacement = true,
                  .forgetful = true};
  EXPECT_GT(Deviation(RandomModel(1, 3), {wrong}, 3, 1), 0.003);
}

// If all tokens are proposed without replacement, one of them is always accepted.
TEST(RejectionSampling, AWholeVocabularyWithoutReplacementIsNeverRejected) {
  const TokenModel p = RandomModel(1, 3), q = RandomModel(2, 3);
  OutcomeEnumerator branching;
  do {
    const TokenTree tree =
        DraftAll({.distribution = q, .children = {3}, .without_replacement = true}, 0, branching);
    EnumeratedRng rng(branching);
    const Verification out = *VerifySampled(
        tree, [&](int node) { return p(PathTo(tree, node)); }, rng);
    EXPECT_EQ(out.path.size(), 1u);
  } while (branching.Next());
}

// The enumeration detects bias: the two classical mistakes.
TEST(RejectionSampling, DetectsBeamTokensTakenAsDrawn) {
  const Ssm wrong{
      .distribution = RandomModel(120, 3), .children = {2}, .chosen = true, .mislabelled = true};
  EXPECT_GT(Deviation(RandomModel(1, 3), {wrong}, 3, 1), 0.01);
}

TEST(RejectionSampling, DetectsAProposalLostInMerging) {
  const TokenModel p = Fixed({0.2, 0.5, 0.3});
  const auto q = std::make_shared<const Distribution>(Distribution{0.6, 0.2, 0.2});
  std::vector<long double> distribution(3, 0);
  OutcomeEnumerator branching;
  do {
    TokenTree tree(0);
    const int first = branching.Choose(*q), second = branching.Choose(*q);
    tree.Propose(0, first, 0, q);
    if (second != first) tree.Propose(0, second, 1, q);
    EnumeratedRng rng(branching);
    const Verification out = *VerifySampled(
        tree, [&](int node) { return p(PathTo(tree, node)); }, rng);
    distribution[out.tokens[0]] += branching.weight();
  } while (branching.Next());
  EXPECT_NEAR(static_cast<double>(distribution[0] + distribution[1] + distribution[2]), 1, kExact);
  EXPECT_GT(std::fabs(static_cast<double>(distribution[1]) - 0.5), 0.01);
}

// Multi-step speculative sampling (SpecInfer, section 4.3), token by token from the root. Returns
// the number of accepted nodes.
int AcceptedStepByStep(const TokenTree& tree, const TokenModel& target,
                       OutcomeEnumerator& branching) {
  int node = 0;
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    Distribution p = target(PathTo(tree, node));
    for (const Proposal& proposal : tree.proposals(node)) {
      Distribution q = *proposal.drawn_from;
      double mass = 1;
      for (const int token : proposal.taken) mass -= std::exchange(q[token], 0);
      const int token = tree.token(proposal.node);
      const double chance = std::min(1.0, p[token] / (q[token] / mass));
      if (branching.Choose({chance, 1 - chance}) == 0) {
        node = proposal.node;
        goes_on = true;
        break;
      }
      double left = 0;
      for (size_t i = 0; i < p.size(); ++i) left += p[i] = std::max(0.0, p[i] - q[i] / mass);
      for (double& value : p) value /= left;
    }
  }
  return tree.depth(node);
}

struct Lengths {
  double here = 0, step_by_step = 0;  // mean accepted nodes
};

Lengths Accepted(const TokenModel& target, const std::vector<Ssm>& ssms) {
  const auto mean = [&](const auto& accepted) {
    long double sum = 0;
    OutcomeEnumerator branching;
    do {
      TokenTree tree(0);
      for (size_t s = 0; s < ssms.size(); ++s) {
        EXPECT_TRUE(tree.Merge(DraftAll(ssms[s], static_cast<int>(s), branching)).ok());
      }
      const int nodes = accepted(tree, branching);
      sum += branching.weight() * nodes;
    } while (branching.Next());
    return static_cast<double>(sum);
  };
  return {
      .here = mean([&](const TokenTree& tree, OutcomeEnumerator& branching) {
        EnumeratedRng rng(branching);
        return static_cast<int>(VerifySampled(
                                    tree, [&](int node) { return target(PathTo(tree, node)); }, rng)
                                    ->path.size());
      }),
      .step_by_step = mean([&](const TokenTree& tree, OutcomeEnumerator& branching) {
        return AcceptedStepByStep(tree, target, branching);
      })};
}

// The example of Sun et al. 2025, section 2: token-by-token verification accepts 10/9; knowing the
// probabilities of whole blocks in advance would give 12/9.
TEST(VerifySampled, AcceptsOfAChainWhatBlockVerificationDoes) {
  const Lengths lengths =
      Accepted(Fixed({1 / 3.0, 2 / 3.0}), {{Fixed({2 / 3.0, 1 / 3.0}), {1, 1}}});
  EXPECT_NEAR(lengths.here, 11 / 9.0, kExact);
  EXPECT_NEAR(lengths.step_by_step, 10 / 9.0, kExact);
}

TEST(VerifySampled, AcceptsMoreThanTokenByTokenVerification) {
  for (const bool without_replacement : {false, true}) {
    for (const std::vector<int>& shape :
         {std::vector<int>{1}, {2}, {1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 1, 1}}) {
      Lengths sum;
      for (uint64_t seed = 0; seed < 8; ++seed) {
        const Ssm ssm{.distribution = RandomModel(seed + 60, 3),
                      .children = shape,
                      .without_replacement = without_replacement};
        const Lengths lengths = Accepted(RandomModel(seed, 3), {ssm});
        EXPECT_GT(lengths.here, lengths.step_by_step - kExact);
        sum.here += lengths.here;
        sum.step_by_step += lengths.step_by_step;
      }
      if (shape.size() == 1) {
        EXPECT_NEAR(sum.here, sum.step_by_step, kExact);
      } else {
        EXPECT_GT(sum.here, 1.01 * sum.step_by_step);
      }
      std::printf("%zu levels from %d%s: %.4f, token by token %.4f\n", shape.size(), shape[0],
                  without_replacement ? " without replacement" : "", sum.here / 8,
                  sum.step_by_step / 8);
    }
  }
}

// The error occurs as often as incremental decoding reaches the node, however often it is drafted.
TEST(VerifySampled, ANodeWithoutADistributionEndsThePath) {
  const TokenModel target = RandomModel(3, 3);
  for (const std::vector<int>& shape : {std::vector<int>{1}, {3}, {1, 1}, {2, 2}}) {
    const Ssm ssm{.distribution = Fixed({0.1, 0.8, 0.1}), .children = shape};
    std::vector<long double> first(3, 0);
    long double stopped = 0;
    OutcomeEnumerator branching;
    do {
      const TokenTree tree = DraftAll(ssm, 0, branching);
      EnumeratedRng rng(branching);
      const auto out = VerifySampled(
          tree,
          [&](int node) -> absl::StatusOr<Distribution> {
            const Path path = PathTo(tree, node);
            if (!path.empty() && path[0] == 1) return absl::InternalError("NaN");
            return target(path);
          },
          rng);
      ASSERT_TRUE(out.ok());
      EXPECT_EQ(out->tokens.size(), out->path.size() + 1);
      first[out->tokens[0]] += branching.weight();
      if (out->tokens[0] != 1) continue;
      // Its next step fails.
      EXPECT_EQ(out->tokens.size(), 1u);
      stopped += branching.weight();
    } while (branching.Next());
    EXPECT_GT(static_cast<double>(stopped), 0.1);
    for (int token = 0; token < 3; ++token) {
      EXPECT_NEAR(static_cast<double>(first[token]), target({})[token], kExact) << token;
    }
  }
}

TEST(VerifySampled, EqualModelsAcceptEveryFirstProposal) {
  const TokenModel p = RandomModel(5, 4);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    TokenTree tree(0);
    int node = 0;
    for (int depth = 0; depth < 4; ++depth) {
      const auto q = std::make_shared<const Distribution>(p(PathTo(tree, node)));
      node = tree.Propose(
          node, SampleFrom(*q, RequestUniform(seed, RngStream::kDraft, 0, depth + 8, 0)), 0, q);
    }
    RequestRng rng(seed, 7);
    const Verification out = *VerifySampled(
        tree, [&](int n) { return p(PathTo(tree, n)); }, rng);
    EXPECT_EQ(out.path.size(), 4u);
  }
}

}  // namespace
}  // namespace espalier
