#include "server/jobs/search_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "absl/time/clock.h"

namespace espalier {
namespace {

TEST(SearchThreadsTest, EachIndexRunsOnce) {
  for (int threads : {1, 2, 7}) {
    SearchThreads pool(threads);
    for (int count : {0, 1, 2, 100}) {
      std::vector<std::atomic<int>> done(count);
      pool.ForEach(count, [&](int i) { ++done[i]; });
      for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1) << threads << " " << count;
    }
  }
}

// Parts that wait for each other finish only if they run concurrently.
TEST(SearchThreadsTest, PartsRunConcurrently) {
  SearchThreads pool(3);
  std::atomic<int> begun = 0;
  pool.ForEach(3, [&](int) {
    ++begun;
    while (begun < 3) absl::SleepFor(absl::Milliseconds(1));
  });
  EXPECT_EQ(begun, 3);
}

// A nested search and a concurrent one: neither waits for the other's threads.
TEST(SearchThreadsTest, NestedLoopsStayWithinLimitWithoutDeadlock) {
  SearchThreads pool(4);
  std::atomic<int> running = 0, most = 0, done = 0;
  pool.ForEach(6, [&](int) {
    pool.ForEach(5, [&](int) {
      const int now = ++running;
      for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
      }
      absl::SleepFor(absl::Milliseconds(1));
      --running;
      ++done;
    });
  });
  EXPECT_EQ(done, 30);
  EXPECT_LE(most, 4);
}

}  // namespace
}  // namespace espalier
