#include "server/jobs/worker_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace espalier {
namespace {

WorkerMemory Of(const std::vector<int64_t>& bytes) {
  std::vector<v1::Device> devices(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) devices[i].set_memory_bytes(bytes[i]);
  return MemoryOf(devices);
}

TEST(WorkerMemory, MemoryOfComputesCountSumSmallestAndLargest) {
  EXPECT_EQ(Of({80, 16, 24}), (WorkerMemory{3, 120, 16, 80}));
  EXPECT_EQ(Of({}), WorkerMemory());
}

TEST(WorkerMemory, LessInAnyMeasureIsLess) {
  const WorkerMemory enough = Of({80, 80});
  for (const auto& lost :
       std::vector<std::vector<int64_t>>{{80}, {160}, {80, 16}, {80, 80, 16}, {40, 40, 80}, {}}) {
    EXPECT_TRUE(IsLessInAny(Of(lost), enough)) << Of(lost).bytes;
  }
  for (const auto& as_good : std::vector<std::vector<int64_t>>{{80, 80}, {80, 96}, {80, 80, 80}}) {
    EXPECT_FALSE(IsLessInAny(Of(as_good), enough)) << Of(as_good).bytes;
  }
}

TEST(WorkerMemory, SmallerLargestWorkerIsLessDespiteMoreTotal) {
  EXPECT_TRUE(IsLessInAny(Of({60, 60}), Of({100, 20})));
}

TEST(WorkerMemory, NothingIsLessThanUnknown) { EXPECT_FALSE(IsLessInAny(Of({1}), WorkerMemory())); }

}  // namespace
}  // namespace espalier
