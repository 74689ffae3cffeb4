// Programs of serving.
#include <map>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "planner/lowering/lower_training.h"
#include "planner/testing/graphs.h"
#include "planner/testing/program_check.h"

namespace espalier {
namespace {

TEST(LowerServingTest, OneDeviceWithDynamicRows) {
  absl::StatusOr<Graph> built = BuildLlamaServing(TestRegistry(), SmallLlama(),
                                                  {.max_rows = 8,
                                                   .max_output_rows = 4,
                                                   .kv_slots = 32,
                                                   .max_sequences = 2,
                                                   .max_context_slots = 32,
                                                   .max_ancestor_slots = 16});
  const Graph graph = Bound(std::move(built), 1);
  absl::StatusOr<v1::Program> program = LowerServing(TestRegistry(), graph);
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_TRUE(program->batch_invariant());
  ASSERT_EQ(program->outputs().count("logits"), 1u);
  const v1::Buffer& logits = program->buffers(program->outputs().at("logits"));
  EXPECT_EQ(logits.dynamic(), v1::OUTPUT_ROWS);
  std::map<v1::BufferKind, int> kinds;
  for (const v1::Buffer& buffer : program->buffers()) {
    ++kinds[buffer.kind()];
    if (buffer.name() == "tokens") {
      EXPECT_EQ(buffer.dynamic(), v1::ROWS);
    }
    if (buffer.name() == "sequence_slots") {
      EXPECT_EQ(buffer.dynamic(), v1::STATIC);
    }
    if (buffer.kind() == v1::PARAMETER_SHARD || buffer.kind() == v1::PERSISTENT) {
      EXPECT_EQ(buffer.dynamic(), v1::STATIC);
    }
  }
  EXPECT_EQ(kinds[v1::HOST_INPUT], 10);
  EXPECT_EQ(kinds[v1::PERSISTENT], 4);
  EXPECT_EQ(CheckPrograms({*program}), absl::OkStatus());
  // Two layers: each norm but the first includes the preceding sum, and gates are one operator.
  std::map<std::string, int> ops;
  for (const v1::Instruction& instruction : program->instructions()) {
    ++ops[instruction.compute().op()];
  }
  EXPECT_EQ(ops["residual_rms_norm"], 4);
  EXPECT_EQ(ops["rms_norm"], 1);
  EXPECT_EQ(ops["swiglu"], 2);
  EXPECT_EQ(ops.count("add") + ops.count("silu") + ops.count("multiply"), 0u);
}

TEST(LowerServingTest, ReportsBadDynamicMetadata) {
  Graph graph = Mlp();
  graph.outputs = {{"logits", graph.FindValue("fc2")}};
  if (graph.outputs[0].second == kNoValue) graph.outputs[0].second = graph.node(2).outputs[0];
  graph.metadata["dynamic.y"] = "rows";
  EXPECT_EQ(LowerServing(TestRegistry(), graph).status().code(),
            absl::StatusCode::kInvalidArgument);
  graph.metadata.clear();
  graph.metadata["dynamic.x"] = "columns";
  const absl::Status status = LowerServing(TestRegistry(), graph).status();
  EXPECT_NE(std::string(status.message()).find("'rows' or 'output_rows'"), std::string::npos);
}

}  // namespace
}  // namespace espalier
