#include "planner/lowering/checkpoint_sharding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "planner/testing/graphs.h"

namespace espalier {
namespace {

using Programs = std::vector<v1::Program>;

// Of one that no step writes if `frozen`.
void Add(Programs* programs, int rank, const std::string& name, int64_t rows, int64_t offset,
         v1::BufferKind kind = v1::PARAMETER_SHARD, bool frozen = false) {
  v1::Program& program = (*programs)[rank];
  if (!frozen) program.add_instructions()->mutable_fill()->set_buffer(program.buffers_size());
  v1::Buffer* buffer = program.add_buffers();
  buffer->set_name(name);
  buffer->set_kind(kind);
  buffer->set_offset_bytes(program.arena_bytes());
  buffer->mutable_spec()->set_dtype(v1::F32);
  buffer->mutable_spec()->add_dims(rows);
  buffer->mutable_spec()->add_offset(offset);
  program.set_arena_bytes(program.arena_bytes() + 4 * rows);
}

void AddFrozen(Programs* programs, int rank, const std::string& name, int64_t rows,
               int64_t offset) {
  Add(programs, rank, name, rows, offset, v1::PARAMETER_SHARD, /*frozen=*/true);
}

// Returns the number of rows that each rank writes. Checks that every region is written once.
std::vector<int64_t> RowsOf(const Programs& programs) {
  std::vector<int64_t> rows(programs.size(), 0);
  std::map<std::pair<std::string, int64_t>, int> written;
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    for (const v1::Buffer& buffer : programs[rank].buffers()) {
      if (buffer.kind() == v1::SCRATCH) continue;
      int& times = written[{buffer.name(), buffer.spec().offset(0)}];
      if (buffer.saved_elsewhere()) continue;
      ++times;
      rows[rank] += buffer.spec().dims(0);
    }
  }
  for (const auto& [region, times] : written) {
    EXPECT_EQ(times, 1) << region.first << "@" << region.second;
  }
  return rows;
}

TEST(ShardCheckpoints, ReplicasWriteEqualShares) {
  Programs programs(4);
  int64_t all = 0;
  for (int tensor = 0; tensor < 30; ++tensor) {
    const int64_t rows = 10 + 7 * (tensor % 5);
    all += 2 * rows;
    for (int rank = 0; rank < 4; ++rank) {
      const std::string name = "w" + std::to_string(tensor);
      Add(&programs, rank, name, rows, 0);
      Add(&programs, rank, name + ".adam_m", rows, 0, v1::OPTIMIZER_STATE);
      Add(&programs, rank, name + ".grad", rows, 0, v1::SCRATCH);
    }
  }
  ShardCheckpoints(&programs);
  for (int64_t rows : RowsOf(programs)) {
    EXPECT_GT(rows, 0.7 * static_cast<double>(all) / 4);
    EXPECT_LT(rows, 1.1 * static_cast<double>(all) / 4);
  }
}

// A reader of part of a shard reads all of it: small replicas must not make each rank read all
// shards.
TEST(ShardCheckpoints, RanksWithoutAShareSaveNothing) {
  Programs programs(3);
  Add(&programs, 0, "w", 100, 0);
  Add(&programs, 1, "w", 100, 0);
  Add(&programs, 2, "w.grad", 100, 0, v1::SCRATCH);
  ShardCheckpoints(&programs);
  const std::set<int> saving = SavingRanks(programs);
  EXPECT_EQ(saving.size(), 1u) << "one of the replicas";
  EXPECT_FALSE(saving.contains(2));
}

TEST(ShardCheckpoints, SmallReplicasAreNotSpreadOverBusyRanks) {
  Programs programs(8);
  for (int rank = 0; rank < 8; ++rank) {
    for (int layer = 0; layer < 8; ++layer) {
      Add(&programs, rank, "w" + std::to_string(layer), 1000, 1000 * rank);
      Add(&programs, rank, "norm" + std::to_string(layer), 2, 0);
    }
  }
  ShardCheckpoints(&programs);
  const std::vector<int64_t> rows = RowsOf(programs);
  EXPECT_EQ(rows[0], 8016);
  for (int rank = 1; rank < 8; ++rank) EXPECT_EQ(rows[rank], 8000) << rank;
}

TEST(ShardCheckpoints, SmallFrozenReplicasAreNotSpreadOverBusyRanks) {
  Programs programs(8);
  for (int rank = 0; rank < 8; ++rank) {
    Add(&programs, rank, "w", 8000, 8000 * rank);
    for (int i = 0; i < 8; ++i) AddFrozen(&programs, rank, "table" + std::to_string(i), 2, 0);
  }
  ShardCheckpoints(&programs);
  const std::vector<int64_t> rows = RowsOf(programs);
  EXPECT_EQ(rows[0], 8016);
  for (int rank = 1; rank < 8; ++rank) EXPECT_EQ(rows[rank], 8000) << rank;
}

// Bytes of what steps change, and of the rest, that each rank writes.
struct WrittenBytes {
  std::vector<int64_t> changing, frozen;
  int64_t largest = 0;  // tensor of the former
};

WrittenBytes BytesOf(const Programs& programs, const std::set<std::string>& frozen) {
  WrittenBytes bytes{std::vector<int64_t>(programs.size()), std::vector<int64_t>(programs.size())};
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    for (const v1::Buffer& buffer : programs[rank].buffers()) {
      const bool is_parameter = buffer.kind() == v1::PARAMETER_SHARD;
      if (!is_parameter && buffer.kind() != v1::OPTIMIZER_STATE) continue;
      if (buffer.saved_elsewhere()) continue;
      int64_t size = 4;
      for (const int64_t extent : buffer.spec().dims()) size *= extent;
      if (is_parameter && frozen.contains(buffer.name())) {
        bytes.frozen[rank] += size;
        continue;
      }
      bytes.changing[rank] += size;
      bytes.largest = std::max(bytes.largest, size);
    }
  }
  return bytes;
}

// Later checkpoints have only what is trained: one rank must not have all of it.
TEST(ShardCheckpoints, WhatIsTrainedIsSharedOutApartFromAFrozenBackbone) {
  Graph graph = Llama(LargerLlama(6));
  std::set<std::string> frozen;
  for (size_t v = 0; v < graph.values().size(); ++v) {
    Value& value = graph.mutable_value(static_cast<ValueId>(v));
    const bool is_trained =
        value.name == "lm_head.weight" || value.name.find("layers.5.") != std::string::npos;
    if (value.kind != ValueKind::kParameter || is_trained) continue;
    value.trainable = false;
    frozen.insert(value.name);
  }
  for (const int ranks : {2, 4}) {
    const absl::StatusOr<v1::Plan> plan =
        MakePlan(TestProblem(graph, 8, ranks), WithStrategy(v1::SearchOptions::DATA_PARALLEL));
    ASSERT_TRUE(plan.ok()) << plan.status();
    LoweringOptions options;
    options.optimizer = TestOptimizer();
    const absl::StatusOr<LoweredPlan> lowered = LowerPlan(TestRegistry(), graph, *plan, options);
    ASSERT_TRUE(lowered.ok()) << lowered.status();
    const WrittenBytes bytes = BytesOf(lowered->training, frozen);
    for (const auto& written : {bytes.changing, bytes.frozen}) {
      const int64_t all = std::accumulate(written.begin(), written.end(), int64_t{0});
      ASSERT_GT(all, 0);
      for (const int64_t part : written) {
        EXPECT_LE(std::abs(part - all / ranks), bytes.largest) << ranks << " ranks";
      }
    }
  }
}

TEST(ShardCheckpoints, OneLargeTensorIsWrittenByOneRankAndTheOthersWriteTheRest) {
  Programs programs(3);
  for (int rank = 0; rank < 3; ++rank) {
    Add(&programs, rank, "table", 1000, 0);
    Add(&programs, rank, "a", 10, 0);
    Add(&programs, rank, "b", 10, 0);
  }
  ShardCheckpoints(&programs);
  const std::vector<int64_t> rows = RowsOf(programs);
  EXPECT_EQ(*std::max_element(rows.begin(), rows.end()), 1000);
  Programs none;
  ShardCheckpoints(&none);
}

// Pipeline stages hold different tensors; nothing is written elsewhere.
TEST(ShardCheckpoints, AnExclusiveTensorIsSavedByItsRank) {
  Programs programs(2);
  Add(&programs, 0, "first", 5, 0);
  Add(&programs, 1, "second", 7, 0);
  ShardCheckpoints(&programs);
  EXPECT_EQ(RowsOf(programs), (std::vector<int64_t>{5, 7}));
}

}  // namespace
}  // namespace espalier
