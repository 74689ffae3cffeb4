#include "serving/speculative/tree_verification.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace espalier {
namespace {

using ::testing::ElementsAre;

TEST(VerifyGreedy, FollowsTheLongestAgreeingPathWhereTokensRepeatAcrossBranches) {
  TokenTree tree(9);
  const int a = tree.Propose(0, 1, 0), b = tree.Propose(0, 2, 0);
  const int a5 = tree.Propose(a, 5, 0), b5 = tree.Propose(b, 5, 0);
  const int b57 = tree.Propose(b5, 7, 0);
  std::map<int, int> greedy = {{0, 2}, {a, 5}, {b, 5}, {a5, 1}, {b5, 7}, {b57, 3}};
  const Verification out =
      *VerifyGreedy(tree, [&](int node) -> absl::StatusOr<int> { return greedy.at(node); });
  EXPECT_THAT(out.path, ElementsAre(b, b5, b57));
  EXPECT_THAT(out.tokens, ElementsAre(2, 5, 7, 3));
}

// The tokens before the failing node are the result, as in incremental decoding.
TEST(VerifyGreedy, TokensBeforeANodeWithoutATokenAreKept) {
  TokenTree tree(9);
  const int a = tree.Propose(0, 1, 0);
  const int b = tree.Propose(a, 2, 0);
  const auto out = VerifyGreedy(tree, [&](int node) -> absl::StatusOr<int> {
    if (node == b) return absl::InternalError("NaN");
    return node + 1;
  });
  ASSERT_TRUE(out.ok());
  EXPECT_THAT(out->path, ElementsAre(a));
  EXPECT_THAT(out->tokens, ElementsAre(1, 2));
}

TEST(VerifyGreedy, ReturnsTheErrorOfTheRoot) {
  EXPECT_EQ(VerifyGreedy(TokenTree(0),
                         [](int) -> absl::StatusOr<int> { return absl::InternalError("NaN"); })
                .status()
                .code(),
            absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace espalier
