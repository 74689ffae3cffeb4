#include "serving/speculative/ngram_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

std::vector<int> Chain(const TokenTree& tree) {
  std::vector<int> out;
  for (int node = 0; !tree.children(node).empty();) {
    node = tree.children(node)[0];
    out.push_back(tree.token(node));
  }
  return out;
}

TEST(NgramIndex, FindsEveryPlaceThatANaiveSearchCallsTheLongestMatch) {
  std::mt19937 random(1);
  for (int run = 0; run < 50; ++run) {
    NgramIndex index;
    std::vector<int> text;
    for (int i = 0; i < 200; ++i) {
      text.push_back(static_cast<int>(random() % 4));
      index.Append({&text.back(), 1});
      // The longest suffix that occurred before with a continuation.
      int longest = 0;
      for (int end = 1; end < static_cast<int>(text.size()); ++end) {
        int length = 0;
        while (length < end && text[end - 1 - length] == text[text.size() - 1 - length]) ++length;
        longest = std::max(longest, length);
      }
      const std::vector<NgramIndex::Match> matches = index.Find(NgramIndex::Runs(text), 2);
      EXPECT_EQ(matches.empty(), longest < 2);
      for (const NgramIndex::Match& match : matches) {
        ASSERT_LT(match.next, static_cast<int>(text.size()));
        for (int k = 1; k <= match.length; ++k) {
          ASSERT_EQ(text[match.next - k], text[text.size() - k]);
        }
      }
      // The longest indexed n-gram that fits is found.
      for (const int kept : {8, 5, 3, 2}) {
        if (longest < kept) continue;
        ASSERT_GE(matches[0].length, kept);
        break;
      }
    }
  }
}

TEST(NgramIndex, TokensThatComeTogetherAreFoundAsThoseThatComeOneByOne) {
  std::mt19937 random(1);
  for (int run = 0; run < 50; ++run) {
    NgramIndex one, many;
    std::vector<int> text;
    for (int i = 0; i < 300; ++i) {
      text.push_back(random() % 50 == 0 ? NgramIndex::kEnd : static_cast<int>(random() % 4));
      one.Append({&text.back(), 1});
    }
    for (absl::Span<const int> rest = text; !rest.empty();) {
      const size_t some = std::min<size_t>(rest.size(), 1 + random() % 20);
      many.Append(rest.first(some));
      rest.remove_prefix(some);
    }
    for (size_t end = 0; end <= text.size(); ++end) {
      const NgramIndex::Runs runs(absl::MakeConstSpan(text).first(end));
      const std::vector<NgramIndex::Match> a = one.Find(runs, 4), b = many.Find(runs, 4);
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(a[i].next, b[i].next);
        ASSERT_EQ(a[i].length, b[i].length);
      }
    }
  }
}

TEST(NgramDrafter, ContinuesAsTheTextDidBefore) {
  NgramDrafter drafter({.depth = 4, .branches = 1});
  const std::vector<int> tokens = {1, 2, 3, 4, 5, 6, 7, 9, 2, 3};
  const TokenTree tree = drafter.Draft(1, tokens, 8, 100, nullptr, 1);
  EXPECT_EQ(tree.token(0), 3);
  EXPECT_THAT(Chain(tree), ElementsAre(4, 5, 6, 7));
  for (int node = 1; node < tree.size(); ++node) {
    EXPECT_EQ(tree.proposals(tree.parent(node))[0].drawn_from, nullptr);
    EXPECT_LT(tree.chance(node), tree.chance(tree.parent(node)));
  }
}

TEST(NgramDrafter, TwoContinuationsAreBranchesAndBoundsHold) {
  NgramDrafter drafter({.depth = 3, .branches = 2});
  const std::vector<int> tokens = {1, 2, 5, 6, 7, 1, 2, 8, 9, 9, 1, 2};
  const TokenTree tree = drafter.Draft(1, tokens, 8, 100, nullptr, 1);
  EXPECT_EQ(tree.children(0).size(), 2u);
  EXPECT_EQ(tree.drafted(), 6);
  EXPECT_EQ(drafter.Draft(2, tokens, 8, 4, nullptr, 1).drafted(), 4);
  EXPECT_EQ(drafter.Draft(3, tokens, 1, 100, nullptr, 1).drafted(), 2);
  EXPECT_EQ(drafter.Draft(4, tokens, 0, 100, nullptr, 1).drafted(), 0);
}

TEST(NgramDrafter, RemembersEarlierAnswersButNotAcrossTheirEnds) {
  NgramDrafter drafter({.depth = 8, .branches = 1});
  (void)drafter.Draft(1, std::vector<int>{50, 51, 52}, 8, 9, nullptr, 1);
  drafter.Release(1, std::vector<int>{50, 51, 52, 10, 11, 12, 13}, 3);
  (void)drafter.Draft(2, std::vector<int>{60}, 8, 9, nullptr, 1);
  drafter.Release(2, std::vector<int>{60, 14, 15}, 1);
  EXPECT_THAT(Chain(drafter.Draft(3, std::vector<int>{7, 10, 11}, 8, 9, nullptr, 1)),
              ElementsAre(12, 13));
  // Prompts of other requests are not used.
  EXPECT_EQ(drafter.Draft(4, std::vector<int>{50, 51}, 8, 9, nullptr, 1).drafted(), 0);
}

TEST(NgramDrafter, AnswersAreRepeatedToRequestsOfTheSameSaltOnly) {
  NgramDrafter drafter({.depth = 8, .branches = 1});
  const auto draft = [&](int64_t request, const char* salt) {
    return Chain(
        drafter.Draft(request, std::vector<int>{7, 10, 11}, 8, 9, nullptr, 1, nullptr, salt));
  };
  int64_t request = 0;
  for (const char* salt : {"", "ours"}) {
    EXPECT_THAT(draft(++request, salt), ElementsAre());
    const int own = salt[0] == 0 ? 12 : 13;
    drafter.Release(request, std::vector<int>{7, 10, 11, own, 14}, 1);
  }
  EXPECT_THAT(draft(++request, ""), ElementsAre(12, 14));
  EXPECT_THAT(draft(++request, "ours"), ElementsAre(13, 14));
  EXPECT_THAT(draft(++request, "theirs"), ElementsAre());
}

TEST(NgramDrafter, ManySaltsTakeNoMoreThanOne) {
  NgramDrafter drafter({.depth = 8, .branches = 1, .history_tokens = 1000});
  const auto answer = [&](int i, const std::string& salt) {
    (void)drafter.Draft(i, std::vector<int>{i}, 8, 9, nullptr, 1, nullptr, salt);
    std::vector<int> tokens(37);
    for (int k = 0; k < 37; ++k) tokens[k] = i * 37 + k;
    drafter.Release(i, tokens, 0);
  };
  const auto drafted = [&](int i, const std::string& salt) {
    return drafter
        .Draft(1000 + i, std::vector<int>{i * 37, i * 37 + 1}, 8, 9, nullptr, 1, nullptr, salt)
        .drafted();
  };
  for (int i = 0; i < 300; ++i) {
    answer(i, absl::StrCat("salt ", i));
    ASSERT_LE(drafter.history_size(), 1000 + 2);
    // A salt in use is kept.
    if (i % 10 == 0) answer(i, "kept");
  }
  EXPECT_GT(drafted(299, "salt 299"), 0);
  EXPECT_EQ(drafted(0, "salt 0"), 0);
  EXPECT_GT(drafted(280, "kept"), 0);
  EXPECT_GT(drafted(200, "kept"), 0);
}

TEST(NgramDrafter, TheHistoryStaysWithinItsBound) {
  NgramDrafter drafter({.depth = 8, .branches = 1, .history_tokens = 1000});
  for (int i = 0; i < 300; ++i) {
    std::vector<int> answer(37);
    for (int k = 0; k < 37; ++k) answer[k] = i * 37 + k;
    (void)drafter.Draft(i, std::vector<int>{i}, 8, 9, nullptr, 1);
    drafter.Release(i, answer, 0);
    ASSERT_LE(drafter.history_size(), 1000 + 2);
  }
  // The latest is there, the first is not.
  EXPECT_GT(
      drafter.Draft(999, std::vector<int>{299 * 37, 299 * 37 + 1}, 8, 9, nullptr, 1).drafted(), 0);
  EXPECT_EQ(drafter.Draft(998, std::vector<int>{0, 1}, 8, 9, nullptr, 1).drafted(), 0);
}

TEST(NgramDrafter, LearnsWhatItsMatchesAreWorth) {
  AcceptanceEstimator acceptance;
  NgramDrafter drafter({.depth = 2, .branches = 1, .history_tokens = 0});
  const std::vector<int> tokens = {1, 2, 3, 4, 5, 1, 2};
  const double before = drafter.Draft(1, tokens, 2, 9, &acceptance, 1).chance(1);
  for (int i = 0; i < 100; ++i) {
    (void)drafter.Draft(1, tokens, 2, 9, &acceptance, 1);
    for (const DraftTrial& trial : drafter.Commit(1, {}, 7)) {
      EXPECT_FALSE(trial.accepted);
      acceptance.Observe(trial);
    }
  }
  EXPECT_LT(drafter.Draft(1, tokens, 2, 9, &acceptance, 1).chance(1), 0.3 * before);
}

}  // namespace
}  // namespace espalier
