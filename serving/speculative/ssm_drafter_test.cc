#include "serving/speculative/ssm_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "serving/sampling/gumbel_coupling.h"
#include "serving/testing/fake_model_runner.h"

namespace espalier {
namespace {

constexpr int kVocabulary = 8;

class SsmDrafterTest : public ::testing::Test {
 protected:
  Expansion Shape(const char* text) { return *Expansion::Parse(text); }
  // With any number of nodes.
  TokenTree BestFirstTree(SsmDrafter& drafter, int64_t request, int depth, const BestFirst& how) {
    TokenTree tree(tokens_.back());
    const std::vector<SsmDrafter::DraftRequest> jobs = {
        {.request = request,
         .tokens = tokens_,
         .prefill = static_cast<int>(tokens_.size()),
         .depth = depth,
         .max_nodes = 1000,
         .best_first = how,
         .tree = &tree}};
    EXPECT_TRUE(drafter.Draft(jobs).ok());
    return tree;
  }

  FakeModel model_ = HashModel(11, kVocabulary);
  FakeModelRunner runner_{FakeModelRunner::LargeLimits(kVocabulary), model_};
  std::vector<int> tokens_ = {1, 2, 3, 4};
};

double LogProbability(const FakeModel& model, std::vector<int> path, int token) {
  const std::vector<float> logits = model(path);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit);
  return logits[token] - std::log(sum);
}

TEST_F(SsmDrafterTest, BeamKeepsTheMostProbableContinuationsOfEachLength) {
  SsmDrafter drafter(runner_, 0, Shape("2,2"));
  TokenTree tree(4);
  const std::vector<SsmDrafter::DraftRequest> jobs = {
      {.request = 1, .tokens = tokens_, .prefill = 4, .depth = 2, .max_nodes = 100, .tree = &tree}};
  ASSERT_TRUE(drafter.Draft(jobs).ok());
  EXPECT_EQ(tree.drafted(), 6);
  // By brute force: the two best first tokens, and the four best of all pairs that start with them.
  std::vector<std::pair<double, int>> first;
  for (int x = 0; x < kVocabulary; ++x) first.push_back({-LogProbability(model_, tokens_, x), x});
  std::sort(first.begin(), first.end());
  std::vector<std::pair<double, std::pair<int, int>>> pairs;
  for (int i = 0; i < 2; ++i) {
    EXPECT_GE(tree.Child(0, first[i].second), 0);
    std::vector<int> path = tokens_;
    path.push_back(first[i].second);
    for (int y = 0; y < kVocabulary; ++y) {
      pairs.push_back({first[i].first - LogProbability(model_, path, y), {first[i].second, y}});
    }
  }
  std::sort(pairs.begin(), pairs.end());
  for (int i = 0; i < 4; ++i) {
    const auto [x, y] = pairs[i].second;
    EXPECT_GE(tree.Child(tree.Child(0, x), y), 0) << x << " " << y;
  }
}

TEST_F(SsmDrafterTest, StopsAtMaxNodes) {
  SsmDrafter drafter(runner_, 0, Shape("3,2"));
  TokenTree tree(4);
  const std::vector<SsmDrafter::DraftRequest> jobs = {
      {.request = 1, .tokens = tokens_, .prefill = 4, .depth = 2, .max_nodes = 5, .tree = &tree}};
  ASSERT_TRUE(drafter.Draft(jobs).ok());
  EXPECT_EQ(tree.drafted(), 5);
}

TEST_F(SsmDrafterTest, DrawsCarryTheDistributionTheyCameFrom) {
  SsmDrafter drafter(runner_, 3, Shape("4,1"));
  TokenTree tree(4);
  const SamplingParameters sampling = {.temperature = 0.7, .top_p = 0.9, .seed = 5};
  const std::vector<SsmDrafter::DraftRequest> jobs = {{.request = 1,
                                                       .tokens = tokens_,
                                                       .prefill = 4,
                                                       .depth = 2,
                                                       .sampling = sampling,
                                                       .tree = &tree}};
  ASSERT_TRUE(drafter.Draft(jobs).ok());
  ASSERT_EQ(tree.proposals(0).size(), 4u);
  const std::vector<float> logits = model_(tokens_);
  const Distribution q = *SamplingDistribution(logits.data(), kVocabulary, sampling);
  for (const Proposal& proposal : tree.proposals(0)) {
    EXPECT_EQ(*proposal.drawn_from, q);
    EXPECT_GT(q[tree.token(proposal.node)], 0);
    EXPECT_EQ(proposal.source, 3);
    EXPECT_EQ(tree.proposals(proposal.node).size(), 1u);
  }
}

// After verification, the SSM's cache must equal a fresh prefill. The fake runner checks that every
// row attends to exactly its own path, so it suffices to draft again and compare with a fresh
// drafter.
TEST_F(SsmDrafterTest, CommitsThePartOfTheAcceptedPathThatItRan) {
  for (const int accepted : {0, 1, 2, 3}) {
    for (const bool strangers : {false, true}) {
      SsmDrafter drafter(runner_, 0, Shape("2,1,1"));
      TokenTree tree(4);
      ASSERT_TRUE(drafter
                      .Draft(std::vector<SsmDrafter::DraftRequest>{{.request = 1,
                                                                    .tokens = tokens_,
                                                                    .prefill = 4,
                                                                    .depth = 3,
                                                                    .max_nodes = 100,
                                                                    .tree = &tree}})
                      .ok());
      std::vector<int> path;
      int node = 0;
      for (int i = 0; i < accepted; ++i) {
        node = tree.children(node).back();
        path.push_back(tree.token(node));
      }
      // Tokens of another SSM, which are not in this one's tree.
      if (strangers && accepted > 0) {
        for (int x = 0; x < kVocabulary; ++x) {
          if (tree.Child(0, x) < 0) path[0] = x;
        }
      }
      ASSERT_TRUE(drafter.Commit(1, path).ok());
      // Neither the last level nor other drafters' tokens were run.
      EXPECT_EQ(drafter.kv().length(1), 4 + (strangers ? 0 : std::min(accepted, 2)));
      EXPECT_EQ(drafter.kv().statistics().used, drafter.kv().length(1));

      std::vector<int> longer = tokens_;
      longer.insert(longer.end(), path.begin(), path.end());
      longer.push_back(6);
      TokenTree again(6), fresh(6);
      SsmDrafter other(runner_, 0, Shape("2,1,1"));
      const auto job = [&](TokenTree* out) {
        return std::vector<SsmDrafter::DraftRequest>{{.request = 1,
                                                      .tokens = longer,
                                                      .prefill = static_cast<int>(longer.size()),
                                                      .depth = 3,
                                                      .max_nodes = 100,
                                                      .tree = out}};
      };
      ASSERT_TRUE(drafter.Draft(job(&again)).ok());
      // Both drafters use the same slot numbers, so the other one may write only now.
      ASSERT_TRUE(other.Draft(job(&fresh)).ok());
      ASSERT_EQ(again.size(), fresh.size());
      for (int i = 0; i < again.size(); ++i) {
        EXPECT_EQ(again.token(i), fresh.token(i));
        EXPECT_EQ(again.parent(i), fresh.parent(i));
      }
      EXPECT_TRUE(drafter.kv().CheckInvariants().ok());
    }
  }
}

TEST_F(SsmDrafterTest, AFailedRunLeavesTheCacheAsItWas) {
  SsmDrafter drafter(runner_, 0, Shape("2,1,1"));
  ASSERT_TRUE(drafter
                  .Draft(std::vector<SsmDrafter::DraftRequest>{
                      {.request = 1, .tokens = tokens_, .prefill = 2}})
                  .ok());
  EXPECT_EQ(drafter.kv().length(1), 2);
  runner_.FailFrom(3);  // within the tree
  TokenTree tree(4);
  const std::vector<SsmDrafter::DraftRequest> jobs = {
      {.request = 1, .tokens = tokens_, .prefill = 4, .depth = 3, .max_nodes = 100, .tree = &tree}};
  EXPECT_EQ(drafter.Draft(jobs).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(drafter.kv().length(1), 2);
  EXPECT_EQ(drafter.kv().statistics().used, 2);
  EXPECT_EQ(tree.drafted(), 0);
}

TEST_F(SsmDrafterTest, OneRunnerBatchPerLevelForAllRequests) {
  SsmDrafter drafter(runner_, 0, Shape("1,2,1"));
  std::vector<TokenTree> trees(5, TokenTree(4));
  std::vector<SsmDrafter::DraftRequest> jobs;
  for (int i = 0; i < 5; ++i) {
    jobs.push_back({.request = i,
                    .tokens = tokens_,
                    .prefill = 4,
                    .depth = 3,
                    .max_nodes = 100,
                    .tree = &trees[i]});
  }
  ASSERT_TRUE(drafter.Draft(jobs).ok());
  EXPECT_EQ(drafter.batches(), 3);
}

// All continuations of up to `depth` tokens with their probabilities, the most probable first.
std::vector<std::pair<double, std::vector<int>>> Continuations(const FakeModel& model,
                                                               const std::vector<int>& tokens,
                                                               int depth) {
  std::vector<std::pair<double, std::vector<int>>> out;
  const std::function<void(double, const std::vector<int>&)> visit =
      [&](double probability, const std::vector<int>& below) {
        if (!below.empty()) out.push_back({probability, below});
        if (static_cast<int>(below.size()) == depth) return;
        std::vector<int> path = tokens;
        path.insert(path.end(), below.begin(), below.end());
        for (int x = 0; x < kVocabulary; ++x) {
          std::vector<int> longer = below;
          longer.push_back(x);
          visit(probability * std::exp(LogProbability(model, path, x)), longer);
        }
      };
  visit(1, {});
  std::sort(out.rbegin(), out.rend());
  return out;
}

TEST_F(SsmDrafterTest, BestFirstTreesHoldTheMostProbableContinuationsOfAll) {
  for (const int nodes : {1, 2, 5, 12, 30}) {
    for (const int depth : {1, 3, 5}) {
      SsmDrafter drafter(runner_, 0, Expansion());
      TokenTree tree(4);
      const std::vector<SsmDrafter::DraftRequest> jobs = {{.request = 1,
                                                           .tokens = tokens_,
                                                           .prefill = 4,
                                                           .depth = depth,
                                                           .max_nodes = nodes,
                                                           .best_first = {.width = 64},
                                                           .tree = &tree}};
      ASSERT_TRUE(drafter.Draft(jobs).ok());
      const auto all = Continuations(model_, tokens_, depth);
      const int expected = std::min(nodes, static_cast<int>(all.size()));
      EXPECT_EQ(tree.drafted(), expected);
      double least = 1;
      for (int node = 1; node < tree.size(); ++node) least = std::min(least, tree.chance(node));
      EXPECT_NEAR(least, all[expected - 1].first, 1e-7);
      for (int i = 0; i + 1 < expected; ++i) {
        int node = 0;
        for (const int token : all[i].second) node = node < 0 ? node : tree.Child(node, token);
        ASSERT_GT(node, 0) << "continuation " << i << " is missing";
        EXPECT_NEAR(tree.chance(node), all[i].first, 1e-7);
      }
      // Not more rows than nodes, and slots only for nodes that were run.
      EXPECT_LE(drafter.kv().statistics().used, 4 + nodes);
    }
  }
}

TEST_F(SsmDrafterTest, BestFirstStopsAtItsPriceAndItsWidth) {
  const auto all = Continuations(model_, tokens_, 4);
  const double price = 0.02;
  SsmDrafter drafter(runner_, 0, Expansion());
  EXPECT_EQ(BestFirstTree(drafter, 1, 4, {.width = 64, .price = price}).drafted(),
            std::count_if(all.begin(), all.end(), [&](const auto& c) { return c.first >= price; }));
  const int64_t rows = runner_.rows();
  EXPECT_EQ(BestFirstTree(drafter, 2, 4, {.width = 2}).drafted(), 2 + 3 * 4);
  EXPECT_EQ(runner_.rows() - rows, 4 + 3 * 2);  // the prompt, and two nodes of each level
}

TEST_F(SsmDrafterTest, NodesThatAreNotWorthARunAreProposedWithoutChildren) {
  const auto all = Continuations(model_, tokens_, 1);
  ASSERT_GT(all.size(), 3u);
  // Only the most probable first token gets children.
  const double parent = (all[0].first + all[1].first) / 2;
  SsmDrafter drafter(runner_, 0, Expansion());
  EXPECT_EQ(BestFirstTree(drafter, 1, 2, {.width = 3, .parent = parent}).drafted(), 3 + 3);
  EXPECT_EQ(runner_.rows(), 4 + 1);
}

TEST_F(SsmDrafterTest, CouplingMakesTheSampleOfAnEqualModelTheFirstCandidate) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SsmDrafter drafter(runner_, 0, Expansion());
    const SamplingParameters sampling = {.temperature = 0.9, .top_p = 0.95, .seed = seed};
    TokenTree tree(4);
    ASSERT_TRUE(drafter
                    .Draft(std::vector<SsmDrafter::DraftRequest>{{.request = 1,
                                                                  .tokens = tokens_,
                                                                  .prefill = 4,
                                                                  .depth = 3,
                                                                  .max_nodes = 1000,
                                                                  .sampling = sampling,
                                                                  .best_first = {.width = 1},
                                                                  .tree = &tree}})
                    .ok());
    std::vector<int> path = tokens_;
    for (int node = 0; tree.children(node).size() == 1;) {
      const std::vector<float> logits = model_(path);
      const Distribution p = *SamplingDistribution(logits.data(), kVocabulary, sampling);
      node = tree.children(node)[0];
      EXPECT_EQ(tree.token(node), CoupledSample(p, seed, path.size()));
      path.push_back(tree.token(node));
    }
    EXPECT_EQ(path.size(), 7u);
  }
}

// A chain ends where its chance, or the expectation of the next draw, is too small. The draw itself
// is kept, whatever it is.
TEST_F(SsmDrafterTest, AChainOfDrawsGoesOnAsLongAsTheNextOneIsExpectedToPay) {
  const BestFirst how = {.width = 4, .price = 0.1, .parent = 0.2, .draws = true};
  int lengths[5] = {}, small = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SsmDrafter drafter(runner_, 2, Expansion());
    TokenTree tree(4);
    const SamplingParameters sampling = {.temperature = 0.7, .seed = seed};
    ASSERT_TRUE(drafter
                    .Draft(std::vector<SsmDrafter::DraftRequest>{{.request = 1,
                                                                  .tokens = tokens_,
                                                                  .prefill = 4,
                                                                  .depth = 5,
                                                                  .max_nodes = 4,
                                                                  .sampling = sampling,
                                                                  .best_first = how,
                                                                  .tree = &tree}})
                    .ok());
    std::vector<int> path = tokens_;
    for (int node = 0; node < tree.size(); ++node) {
      const std::vector<float> logits = model_(path);
      const Distribution q = *SamplingDistribution(logits.data(), kVocabulary, sampling);
      double expected = 0;  // without a history, a draw is worth its probability
      for (const double value : q) expected += value * std::min(value, AcceptanceEstimator::kMost);
      const double chance = tree.chance(node);
      const bool goes_on =
          node < 4 && (node == 0 || chance >= how.parent) && chance * expected >= how.price;
      ASSERT_EQ(tree.proposals(node).size(), goes_on ? 1u : 0u);
      if (!goes_on) break;
      EXPECT_EQ(*tree.proposals(node)[0].drawn_from, q);
      const int token = tree.token(node + 1);
      EXPECT_NEAR(tree.chance(node + 1), chance * std::min(q[token], AcceptanceEstimator::kMost),
                  1e-12);
      small += tree.chance(node + 1) < how.price;
      path.push_back(token);
    }
    ++lengths[tree.drafted()];
  }
  EXPECT_GT(lengths[1], 5);
  EXPECT_GT(lengths[2], 5);
  EXPECT_GT(small, 5);
}

// Omitted draws count with their expected acceptance. Otherwise, depths that are drawn only where
// the SSM is confident would be overestimated.
TEST_F(SsmDrafterTest, AnOmittedDrawCountsWithItsExpectedAcceptance) {
  SsmDrafter drafter(runner_, 0, Expansion());
  TokenTree tree(4);
  const BestFirst how = {.width = 4, .price = 0.99, .draws = true};
  ASSERT_TRUE(drafter
                  .Draft(std::vector<SsmDrafter::DraftRequest>{{.request = 1,
                                                                .tokens = tokens_,
                                                                .prefill = 4,
                                                                .depth = 3,
                                                                .max_nodes = 4,
                                                                .sampling = {.temperature = 1},
                                                                .best_first = how,
                                                                .tree = &tree}})
                  .ok());
  EXPECT_EQ(tree.drafted(), 0);
  const std::vector<DraftTrial> trials = *drafter.Commit(1, {}, 3);
  ASSERT_EQ(trials.size(), 1u);
  EXPECT_EQ(trials[0].depth, 1);
  double expected = 0;
  for (int x = 0; x < kVocabulary; ++x) {
    expected += std::exp(2 * LogProbability(model_, tokens_, x));
  }
  EXPECT_NEAR(trials[0].expected_acceptance, expected, 1e-6);
  AcceptanceEstimator acceptance;
  const double before = acceptance.OfProbability(0.5, 1, 0);
  for (int i = 0; i < 2000; ++i) acceptance.Observe(trials[0]);
  EXPECT_NEAR(acceptance.OfRank(1, 0), expected, 0.02);
  EXPECT_EQ(acceptance.OfProbability(0.5, 1, 0), before);
}

// If a position was not decided, the next step draws it with other random numbers, because the end
// of the first tree may depend on its draws.
TEST_F(SsmDrafterTest, DrawsBelowAnotherRootAreOtherDraws) {
  const FakeModel flat = [](absl::Span<const int>) { return std::vector<float>(kVocabulary, 0); };
  FakeModelRunner runner(FakeModelRunner::LargeLimits(kVocabulary), flat);
  int same = 0;
  constexpr int kSeeds = 400;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SsmDrafter drafter(runner, 0, Shape("1,1"));
    TokenTree trees[] = {TokenTree(4), TokenTree(5)};
    std::vector<int> tokens = tokens_;
    for (int64_t i = 0; i < 2; ++i) {
      const std::vector<SsmDrafter::DraftRequest> jobs = {
          {.request = i,
           .tokens = tokens,
           .prefill = static_cast<int>(tokens.size()),
           .depth = 2,
           .sampling = {.temperature = 1, .seed = seed},
           .tree = &trees[i]}};
      ASSERT_TRUE(drafter.Draft(jobs).ok());
      tokens.push_back(5);
    }
    same += trees[0].token(2) == trees[1].token(1);
  }
  // 50 by chance, with a standard deviation of 6.6.
  EXPECT_GT(same, 20);
  EXPECT_LT(same, 80);
}

// Beam, draws and best-first: all tokens are allowed after their path, and the stated distribution
// of a draw includes the logits processors.
TEST_F(SsmDrafterTest, DraftsRespectLogitsProcessors) {
  const LogitsProcessorOptions rules = {.frequency_penalty = 1.5,
                                        .logit_bias = {{2, 1.0f}},
                                        .allowed = {0, 2, 3, 5},
                                        .bad_words = {{2, 3}, {5, 5}, {0, 2}}};
  LogitsProcessor answer(std::make_shared<LogitsProcessorOptions>(rules), tokens_, {});
  const SamplingParameters sampled = {.temperature = 0.9, .seed = 5};
  for (const bool draws : {false, true}) {
    for (const auto& [width, by_draws] : {std::pair{0, false}, {3, false}, {3, true}}) {
      SsmDrafter drafter(runner_, 0, Shape("3,3,2"));
      TokenTree tree(4);
      ASSERT_TRUE(drafter
                      .Draft(std::vector<SsmDrafter::DraftRequest>{
                          {.request = 1,
                           .tokens = tokens_,
                           .prefill = 4,
                           .depth = 3,
                           .max_nodes = 40,
                           .sampling = draws ? sampled : SamplingParameters(),
                           .logits_processor = &answer,
                           .best_first = {.width = width, .draws = by_draws},
                           .tree = &tree}})
                      .ok());
      EXPECT_GT(tree.drafted(), draws ? 2 : 5);
      for (int node = 0; node < tree.size(); ++node) {
        std::vector<int> path = tokens_;
        for (const int token : tree.PathTo(node)) path.push_back(token);
        std::vector<float> logits = model_(path);
        ASSERT_TRUE(answer.Apply(tree.PathTo(node), logits.data(), kVocabulary).ok());
        const Distribution distribution =
            *SamplingDistribution(logits.data(), kVocabulary, sampled);
        for (const Proposal& proposal : tree.proposals(node)) {
          const int token = tree.token(proposal.node);
          EXPECT_TRUE(answer.Allows(tree.PathTo(node), token));
          EXPECT_GT(distribution[token], 0) << token;
          ASSERT_EQ(proposal.drawn_from != nullptr, draws && (width == 0 || by_draws));
          if (proposal.drawn_from != nullptr) {
            EXPECT_EQ(*proposal.drawn_from, distribution);
          }
        }
      }
    }
  }
}

// A node after which nothing may follow has no children; the rest of the tree stays.
TEST_F(SsmDrafterTest, ANodeWithAllTokensMaskedGetsNoChildren) {
  LogitsProcessor answer(std::make_shared<LogitsProcessorOptions>(LogitsProcessorOptions{
                             .allowed = {0, 1}, .bad_words = {{0, 0}, {0, 1}}}),
                         tokens_, {});
  SsmDrafter drafter(runner_, 0, Shape("2,2,2"));
  TokenTree tree(4);
  ASSERT_TRUE(drafter
                  .Draft(std::vector<SsmDrafter::DraftRequest>{{.request = 1,
                                                                .tokens = tokens_,
                                                                .prefill = 4,
                                                                .depth = 3,
                                                                .max_nodes = 100,
                                                                .logits_processor = &answer,
                                                                .tree = &tree}})
                  .ok());
  EXPECT_EQ(tree.drafted(), 6);
  for (int node = 1; node < tree.size(); ++node) {
    EXPECT_EQ(tree.children(node).empty(), tree.token(node) == 0 || tree.depth(node) == 3);
  }
}

TEST_F(SsmDrafterTest, CandidatesNotVerifiedCountForAcceptance) {
  SsmDrafter drafter(runner_, 0, Expansion());
  TokenTree tree(4);
  ASSERT_TRUE(drafter
                  .Draft(std::vector<SsmDrafter::DraftRequest>{{.request = 1,
                                                                .tokens = tokens_,
                                                                .prefill = 4,
                                                                .depth = 1,
                                                                .max_nodes = 1,
                                                                .best_first = {.width = 3},
                                                                .tree = &tree}})
                  .ok());
  ASSERT_EQ(tree.drafted(), 1);
  const std::vector<float> logits = model_(tokens_);
  std::vector<int> order = {0, 1, 2, 3, 4, 5, 6, 7};
  std::sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  const std::vector<DraftTrial> trials = *drafter.Commit(1, {}, order[1]);
  ASSERT_EQ(trials.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(trials[rank].rank, rank);
    EXPECT_EQ(trials[rank].depth, 1);
    EXPECT_EQ(trials[rank].accepted, rank == 1);
    EXPECT_NEAR(trials[rank].probability, std::exp(LogProbability(model_, tokens_, order[rank])),
                1e-6);
  }
}

TEST_F(SsmDrafterTest, NanLogitsAreAnError) {
  for (const bool greedy : {true, false}) {
    for (const int width : {0, 4}) {
      FakeModelRunner broken(FakeModelRunner::LargeLimits(kVocabulary), [](absl::Span<const int>) {
        return std::vector<float>(kVocabulary, NAN);
      });
      SsmDrafter drafter(broken, 0, Shape("2,2"));
      TokenTree tree(4);
      const std::vector<SsmDrafter::DraftRequest> jobs = {
          {.request = 1,
           .tokens = tokens_,
           .prefill = 4,
           .depth = 2,
           .max_nodes = 9,
           .sampling = {.temperature = greedy ? 0.0 : 1.0},
           .best_first = {.width = width},
           .tree = &tree}};
      EXPECT_EQ(drafter.Draft(jobs).code(), absl::StatusCode::kInternal);
      EXPECT_EQ(tree.drafted(), 0);
    }
  }
}

}  // namespace
}  // namespace espalier
