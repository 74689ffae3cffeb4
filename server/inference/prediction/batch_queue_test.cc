#include "server/inference/prediction/batch_queue.h"

#include <gtest/gtest.h>

#include <tuple>

namespace espalier {
namespace {

using Parts = std::vector<std::tuple<uint64_t, int64_t, int64_t>>;  // request, first, examples

const absl::Time kStart = absl::UnixEpoch();

absl::Time After(int milliseconds) { return kStart + absl::Milliseconds(milliseconds); }

Parts TakeAt(BatchQueue* queue, absl::Time now) {
  Parts parts;
  for (const BatchQueue::Part& part : queue->Take(now)) {
    parts.emplace_back(part.request, part.first, part.examples);
  }
  return parts;
}

TEST(BatchQueueTest, RequestsThatArriveWithinTheDelayRunTogether) {
  BatchQueue queue({.max_batch = 8, .max_delay = absl::Milliseconds(10)});
  queue.Add(1, 2, After(0));
  queue.Add(2, 3, After(4));
  EXPECT_EQ(queue.Due(), After(10));
  EXPECT_TRUE(queue.Take(After(9)).empty());
  EXPECT_EQ(TakeAt(&queue, After(10)), (Parts{{1, 0, 2}, {2, 0, 3}}));
  EXPECT_EQ(queue.Due(), absl::InfiniteFuture());
}

TEST(BatchQueueTest, AFullBatchDoesNotWait) {
  BatchQueue queue({.max_batch = 4, .max_delay = absl::Minutes(1)});
  queue.Add(1, 3, After(0));
  EXPECT_TRUE(queue.Take(After(1)).empty());
  queue.Add(2, 2, After(1));
  EXPECT_EQ(TakeAt(&queue, After(1)), (Parts{{1, 0, 3}, {2, 0, 1}}));
  // The rest of the second request waits from its own arrival on.
  EXPECT_EQ(queue.examples(), 1);
  EXPECT_EQ(queue.Due(), After(1) + absl::Minutes(1));
  EXPECT_EQ(TakeAt(&queue, queue.Due()), (Parts{{2, 1, 1}}));
}

TEST(BatchQueueTest, ALargeRequestTakesSeveralPassesInOrder) {
  BatchQueue queue({.max_batch = 4, .max_delay = absl::Milliseconds(10)});
  queue.Add(1, 10, After(0));
  EXPECT_EQ(TakeAt(&queue, After(0)), (Parts{{1, 0, 4}}));
  EXPECT_EQ(TakeAt(&queue, After(0)), (Parts{{1, 4, 4}}));
  queue.Add(2, 1, After(5));
  EXPECT_EQ(TakeAt(&queue, After(10)), (Parts{{1, 8, 2}, {2, 0, 1}}));
}

TEST(BatchQueueTest, WithoutADelayARequestRunsAtOnce) {
  BatchQueue queue({.max_batch = 4, .max_delay = absl::ZeroDuration()});
  queue.Add(1, 1, After(3));
  EXPECT_EQ(queue.Due(), After(3));
  EXPECT_EQ(TakeAt(&queue, After(3)), (Parts{{1, 0, 1}}));
}

TEST(BatchQueueTest, ARemovedRequestLeavesNothing) {
  BatchQueue queue({.max_batch = 4, .max_delay = absl::Milliseconds(10)});
  queue.Add(1, 3, After(0));
  queue.Add(2, 2, After(2));
  queue.Remove(1);
  EXPECT_EQ(queue.examples(), 2);
  EXPECT_EQ(queue.Due(), After(12));
  EXPECT_EQ(TakeAt(&queue, After(12)), (Parts{{2, 0, 2}}));
}

}  // namespace
}  // namespace espalier
