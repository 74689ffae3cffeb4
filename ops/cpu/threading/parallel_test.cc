#include "ops/cpu/threading/parallel.h"

#include <omp.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "ops/cpu/threading/thread_team.h"
#include "ops/cpu/threading/work_stealing_ranges.h"

namespace espalier {
namespace {

// Runs on OpenMP's threads and on a ThreadTeam.
class ParallelTest : public testing::TestWithParam<bool> {
 protected:
  ParallelTest() { UseThreads(4); }
  ~ParallelTest() override {
    omp_set_num_threads(before_);
    UseOwnTeam(false);
  }

  static void UseThreads(int threads) {
    omp_set_num_threads(threads);
    UseOwnTeam(GetParam());
  }

 private:
  const int before_ = omp_get_max_threads();
};

INSTANTIATE_TEST_SUITE_P(Threads, ParallelTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Team" : "OpenMp"; });

TEST_P(ParallelTest, RunsEveryIndexOnceAndWritesAreVisible) {
  for (const int threads : {1, 2, 3, 20}) {
    UseThreads(threads);
    for (const int64_t n : {1, 2, 3, 7, 64, 1000}) {
      for (const int64_t work : {1, 1000, 1 << 20}) {
        std::vector<int> seen(static_cast<size_t>(n));
        ParallelRanges(n, work, [&](int64_t begin, int64_t end) {
          ASSERT_LT(begin, end);
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        ASSERT_EQ(seen, std::vector<int>(seen.size(), 1)) << n << " of " << work;
      }
    }
  }
}

TEST_P(ParallelTest, BlocksDependOnTheGrainAlone) {
  for (const int threads : {1, 2, 5}) {
    UseThreads(threads);
    std::vector<int64_t> ends(100);
    ParallelBlocks(100, 7,
                   [&](int64_t begin, int64_t end) { ends[static_cast<size_t>(begin)] = end; });
    for (int64_t i = 0; i < 100; ++i) {
      ASSERT_EQ(ends[static_cast<size_t>(i)], i % 7 == 0 ? std::min<int64_t>(100, i + 7) : 0);
    }
  }
}

TEST_P(ParallelTest, PartsAreUniquePerThread) {
  constexpr int kParts = 3;
  for (int turn = 0; turn < 200; ++turn) {
    std::atomic<int> inside[kParts] = {};
    std::atomic<int> sum = 0;
    ParallelParts(64, kParallelGrain, kParts, [&](int64_t begin, int64_t end, int part) {
      ASSERT_GE(part, 0);
      ASSERT_LT(part, kParts);
      EXPECT_EQ(inside[part].fetch_add(1), 0);
      sum += static_cast<int>(end - begin);
      inside[part].fetch_sub(1);
    });
    ASSERT_EQ(sum, 64);
  }
}

TEST_P(ParallelTest, NestedLoopsRun) {
  std::atomic<int64_t> sum = 0;
  ParallelRanges(50, kParallelGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ParallelRanges(i, kParallelGrain, [&](int64_t from, int64_t to) { sum += to - from; });
    }
  });
  EXPECT_EQ(sum, 50 * 49 / 2);
}

// Counts the threads in a loop whose first body waits for a second thread.
std::set<std::thread::id> Helped(ThreadTeam& team) {
  std::atomic<int> there = 0;
  std::vector<std::thread::id> ids(static_cast<size_t>(team.threads()));
  const auto begin = std::chrono::steady_clock::now();
  team.Run(team.threads(), [&](int number) {
    ids[static_cast<size_t>(number)] = std::this_thread::get_id();
    ++there;
    while (number == 0 && there < 2 &&
           std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) {
      std::this_thread::yield();
    }
  });
  std::set<std::thread::id> some(ids.begin(), ids.end());
  some.erase(std::thread::id());
  return some;
}

TEST(ThreadTeamTest, HelpersJoinWhileSpinningAndAfterSleeping) {
  ThreadTeam team(3);
  for (const int milliseconds : {0, 0, 20, 0, 20}) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    EXPECT_GE(Helped(team).size(), 2u) << "after " << milliseconds << " ms";
  }
}

TEST(ThreadTeamTest, AtMostTheRequestedThreadsJoin) {
  ThreadTeam team(4);
  for (int turn = 0; turn < 500; ++turn) {
    std::atomic<int> calls = 0;
    team.Run(2, [&](int number) {
      ++calls;
      EXPECT_LT(number, 2);
    });
    ASSERT_GE(calls, 1);
    ASSERT_LE(calls, 2);
  }
}

// The system may deschedule helpers for any time.
TEST(ThreadTeamTest, CallerDoesAllWorkIfNoHelperJoins) {
  WorkStealingRanges ranges(1000, 4);
  std::vector<int> seen(1000);
  ranges.Drain(2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
  });
  EXPECT_EQ(seen, std::vector<int>(1000, 1));
}

TEST(ThreadTeamTest, ThreadKeepsItsTeamUntilItAsksForAnother) {
  EXPECT_EQ(OwnTeam(), nullptr);
  std::thread([] {
    omp_set_num_threads(2);
    UseOwnTeam(true);
    ThreadTeam* const team = OwnTeam();
    ASSERT_NE(team, nullptr);
    EXPECT_EQ(team->threads(), 2);
    UseOwnTeam(false);
    EXPECT_EQ(OwnTeam(), nullptr);
    UseOwnTeam(true);
    EXPECT_EQ(OwnTeam(), team);
    omp_set_num_threads(3);
    UseOwnTeam(true);
    EXPECT_EQ(OwnTeam()->threads(), 3);
  }).join();
  EXPECT_EQ(OwnTeam(), nullptr);
}

}  // namespace
}  // namespace espalier
