#include "serving/speculative/drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "serving/testing/fake_model_runner.h"

namespace espalier {
namespace {

constexpr int kVocabulary = 8;

class DrafterTest : public ::testing::Test {
 protected:
  Expansion Shape(const char* text) { return *Expansion::Parse(text); }

  FakeModel model_ = HashModel(11, kVocabulary);
  FakeModelRunner runner_{FakeModelRunner::RoomyLimits(kVocabulary), model_};
  std::vector<int> tokens_ = {1, 2, 3, 4};
};

double LogProbability(const FakeModel& model, std::vector<int> path, int token) {
  const std::vector<float> logits = model(path);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit);
  return logits[token] - std::log(sum);
}

TEST_F(DrafterTest, BeamKeepsTheMostProbableContinuationsOfEachLength) {
  Drafter drafter(runner_, 0, Shape("2,2"));
  TokenTree tree(4);
  const std::vector<Drafter::Job> jobs = {
      {.request = 1, .tokens = tokens_, .follow = 4, .depth = 2, .max_nodes = 100, .tree = &tree}};
  ASSERT_TRUE(drafter.Draft(jobs).ok());
  EXPECT_EQ(tree.drafted(), 6);
  // By brute force: the two best first tokens, and the four best of all pairs that begin with them.
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

TEST_F(DrafterTest, StopsAtTheNodesThatItMayUse) {
  Drafter drafter(runner_, 0, Shape("3,2"));
  TokenTree tree(4);
  const std::vector<Drafter::Job> jobs = {
      {.request = 1, .tokens = tokens_, .follow = 4, .depth = 2, .max_nodes = 5, .tree = &tree}};
  ASSERT_TRUE(drafter.Draft(jobs).ok());
  EXPECT_EQ(tree.drafted(), 5);
}

TEST_F(DrafterTest, DrawsCarryTheDistributionTheyCameFrom) {
  Drafter drafter(runner_, 3, Shape("4,1"));
  TokenTree tree(4);
  const SamplingParameters sampling = {.temperature = 0.7, .top_p = 0.9, .seed = 5};
  const std::vector<Drafter::Job> jobs = {{.request = 1,
                                           .tokens = tokens_,
                                           .follow = 4,
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

// What the SSM keeps after a verification must be what a fresh prefill gives: the fake runner
// checks that every row sees exactly its own path, so it is enough to draft again and compare with
// a fresh drafter.
TEST_F(DrafterTest, FollowsTheAcceptedPathHoweverMuchOfItItHas) {
  for (const int accepted : {0, 1, 2, 3}) {
    for (const bool strangers : {false, true}) {
      Drafter drafter(runner_, 0, Shape("2,1,1"));
      TokenTree tree(4);
      ASSERT_TRUE(drafter
                      .Draft(std::vector<Drafter::Job>{{.request = 1,
                                                        .tokens = tokens_,
                                                        .follow = 4,
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
      // Another SSM's proposal: no token that this one has in its tree.
      if (strangers && accepted > 0) {
        for (int x = 0; x < kVocabulary; ++x) {
          if (tree.Child(0, x) < 0) path[0] = x;
        }
      }
      ASSERT_TRUE(drafter.Commit(1, path).ok());
      // The last level was not run, nor what it did not propose.
      EXPECT_EQ(drafter.kv().length(1), 4 + (strangers ? 0 : std::min(accepted, 2)));
      EXPECT_EQ(drafter.kv().statistics().used, drafter.kv().length(1));

      std::vector<int> longer = tokens_;
      longer.insert(longer.end(), path.begin(), path.end());
      longer.push_back(6);
      TokenTree again(6), fresh(6);
      Drafter other(runner_, 0, Shape("2,1,1"));
      const auto job = [&](TokenTree* out) {
        return std::vector<Drafter::Job>{{.request = 1,
                                          .tokens = longer,
                                          .follow = static_cast<int>(longer.size()),
                                          .depth = 3,
                                          .max_nodes = 100,
                                          .tree = out}};
      };
      ASSERT_TRUE(drafter.Draft(job(&again)).ok());
      // The two drafters number the same slots, so only now may the other one write them.
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

TEST_F(DrafterTest, AFailedRunLeavesTheCacheAsItWas) {
  Drafter drafter(runner_, 0, Shape("2,1,1"));
  ASSERT_TRUE(
      drafter.Draft(std::vector<Drafter::Job>{{.request = 1, .tokens = tokens_, .follow = 2}})
          .ok());
  EXPECT_EQ(drafter.kv().length(1), 2);
  runner_.FailFrom(3);  // in the middle of the tree
  TokenTree tree(4);
  const std::vector<Drafter::Job> jobs = {
      {.request = 1, .tokens = tokens_, .follow = 4, .depth = 3, .max_nodes = 100, .tree = &tree}};
  EXPECT_EQ(drafter.Draft(jobs).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(drafter.kv().length(1), 2);
  EXPECT_EQ(drafter.kv().statistics().used, 2);
  EXPECT_EQ(tree.drafted(), 0);
}

TEST_F(DrafterTest, OneRunnerBatchPerLevelForAllRequests) {
  Drafter drafter(runner_, 0, Shape("1,2,1"));
  std::vector<TokenTree> trees(5, TokenTree(4));
  std::vector<Drafter::Job> jobs;
  for (int i = 0; i < 5; ++i) {
    jobs.push_back({.request = i,
                    .tokens = tokens_,
                    .follow = 4,
                    .depth = 3,
                    .max_nodes = 100,
                    .tree = &trees[i]});
  }
  ASSERT_TRUE(drafter.Draft(jobs).ok());
  EXPECT_EQ(drafter.batches(), 3);
}

}  // namespace
}  // namespace espalier
