#include "serving/speculative/token_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serving/speculative/expansion.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TokenTree, SharesANodeAndKeepsEveryProposal) {
  const auto q = std::make_shared<const Distribution>(Distribution{0.5, 0.5});
  TokenTree tree(7);
  const int first = tree.Propose(0, 1, 0, q);
  EXPECT_EQ(tree.Propose(0, 1, 0, q), first);
  EXPECT_EQ(tree.size(), 2);
  EXPECT_EQ(tree.proposals(0).size(), 2u);
  EXPECT_THAT(tree.children(0), ElementsAre(first));
}

TEST(TokenTree, MergeJoinsEqualPathsOnly) {
  TokenTree a(7), b(7);
  const int a1 = a.Propose(0, 1, 0);
  a.Propose(a1, 5, 0);
  const int b2 = b.Propose(0, 2, 1);
  b.Propose(b2, 5, 1);  // the same token at the same depth, on another branch
  const int b1 = b.Propose(0, 1, 1);
  b.Propose(b1, 6, 1);
  ASSERT_TRUE(a.Merge(b).ok());
  EXPECT_EQ(a.size(), 6);
  EXPECT_EQ(a.proposals(0).size(), 3u);
  EXPECT_EQ(a.proposals(0)[1].source, 1);
  const int two = a.Child(0, 2);
  ASSERT_GE(two, 0);
  EXPECT_GE(a.Child(two, 5), 0);
  EXPECT_EQ(a.Child(two, 6), -1);
  EXPECT_GE(a.Child(a1, 6), 0);
  EXPECT_EQ(a.depth(a.Child(a1, 6)), 2);
  for (int node = 1; node < a.size(); ++node) EXPECT_LT(a.parent(node), node);
}

TEST(TokenTree, WhatWasDrawnIsNeverDropped) {
  const auto q = std::make_shared<const Distribution>(Distribution{0.2, 0.3, 0.5});
  TokenTree tree(7);
  const int drawn = tree.Propose(0, 1, 0, q);
  const int beside = tree.Propose(0, 2, 1);
  tree.Propose(0, 1, 1);  // chosen, too
  tree.Propose(drawn, 0, 0, q);
  tree.Propose(drawn, 2, 1);
  const int below = tree.Propose(beside, 0, 1);
  EXPECT_TRUE(tree.drawn(drawn));
  EXPECT_FALSE(tree.drawn(beside));
  std::vector<bool> keep(tree.size(), false);
  keep[0] = true;
  const TokenTree least = tree.Keep(keep);
  EXPECT_EQ(least.drafted(), 2);
  EXPECT_EQ(least.proposals(0).size(), 2u);
  EXPECT_GT(least.Child(least.Child(0, 1), 0), 0);
  keep[beside] = keep[below] = true;
  const TokenTree more = tree.Keep(keep);
  EXPECT_EQ(more.drafted(), 4);
  EXPECT_GT(more.Child(more.Child(0, 2), 0), 0);
  EXPECT_EQ(more.Child(more.Child(0, 1), 2), -1);
}

TEST(TokenTree, DoesNotMergeTreesOfDifferentRoots) {
  TokenTree a(1);
  EXPECT_EQ(a.Merge(TokenTree(2)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Expansion, CountsWidthsAndNodes) {
  const Expansion e = *Expansion::Parse("1, 1,3 ,1,1");
  EXPECT_EQ(e.depth(), 5);
  EXPECT_EQ(e.width(1), 1);
  EXPECT_EQ(e.width(4), 3);
  EXPECT_EQ(e.nodes(2), 2);
  EXPECT_EQ(e.nodes(99), 11);
  EXPECT_EQ(e.ToString(), "1,1,3,1,1");
  EXPECT_EQ(Expansion::Parse("")->depth(), 0);
}

TEST(Expansion, SaysWhichEntryIsWrong) {
  const auto error = [](const std::string& text) {
    return std::string(Expansion::Parse(text).status().message());
  };
  EXPECT_THAT(error("1,x,2"), HasSubstr("entry 2 is \"x\""));
  EXPECT_THAT(error("1,,2"), HasSubstr("entry 2"));
  EXPECT_THAT(error("1,0"), HasSubstr("entry 2 is 0"));
  EXPECT_THAT(error("-1"), HasSubstr("entry 1 is -1"));
  EXPECT_THAT(error("4294967296"), HasSubstr("entry 1"));
  EXPECT_THAT(error("1024,1024,1024,1024,1024,1024,1024"), HasSubstr("1024 nodes"));
  EXPECT_THAT(error("1,2,"), HasSubstr("entry 3"));
}

}  // namespace
}  // namespace espalier
