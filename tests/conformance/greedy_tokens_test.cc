// A model folder that transformers 5 wrote, as it is on disk, generates the tokens of transformers'
// generate(do_sample=False). Its config.json names the experts "num_local_experts".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "models/model.h"
#include "models/weights/weight_files.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "tests/conformance/family_model.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

constexpr char kFolder[] = "tests/conformance/qwen3_moe_transformers5";
constexpr int kRows = 16;

class GreedyTokensTest : public ::testing::Test {
 protected:
  GreedyTokensTest() { RegisterAllOperators(registry_); }

  absl::StatusOr<std::unique_ptr<ProgramModelRunner>> Runner() {
    const absl::StatusOr<std::string> config = ReadModelConfig(*files_, kFolder);
    if (!config.ok()) return config.status();
    const absl::StatusOr<LanguageModel> model = ReadModel(*config);
    if (!model.ok()) return model.status();
    vocabulary_ = static_cast<int>(model->facts.vocab_size);
    const ServingShape shape{.max_rows = kRows,
                             .max_output_rows = kRows,
                             .kv_slots = kSequenceSlots,
                             .max_sequences = 1,
                             .max_context_slots = kSequenceSlots,
                             .max_ancestor_slots = kRows,
                             .max_positions = kSequenceSlots};
    absl::StatusOr<ServingModel> serving = BuildServing(registry_, *model, shape);
    if (!serving.ok()) return serving.status();
    const absl::Status bound = BindAndInfer(registry_, 1, &serving->graph);
    if (!bound.ok()) return bound;
    AddImplicitSources(serving->graph, &serving->weights);
    const absl::StatusOr<v1::Program> program = LowerServing(registry_, serving->graph);
    if (!program.ok()) return program.status();
    return ProgramModelRunner::Create(*program, kFolder, kSequenceSlots, device_.get(),
                                      serving->weights);
  }

  OpRegistry registry_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::unique_ptr<Device> device_ = NewCpuDevice({1, 1 << 26});
  int vocabulary_ = 0;
};

TEST_F(GreedyTokensTest, Qwen3MoeOfTransformers5) {
  absl::StatusOr<std::unique_ptr<ProgramModelRunner>> runner = Runner();
  ASSERT_TRUE(runner.ok()) << runner.status();
  std::vector<int32_t> tokens = {72, 10, 50, 60, 33, 90, 12, 45};
  const size_t prompt = tokens.size();
  size_t done = 0;
  while (tokens.size() < prompt + 12) {
    RunnerBatch batch;
    AddSequence(&batch, tokens, static_cast<int>(done), static_cast<int>(tokens.size()));
    RunnerOutput logits;
    const absl::Status status = (*runner)->Step(batch, &logits);
    ASSERT_TRUE(status.ok()) << status;
    const float* last = logits.row(batch.rows() - 1);
    done = tokens.size();
    tokens.push_back(static_cast<int32_t>(std::max_element(last, last + vocabulary_) - last));
  }
  EXPECT_THAT(std::vector<int32_t>(tokens.begin() + static_cast<int>(prompt), tokens.end()),
              ElementsAre(127, 266, 132, 266, 266, 266, 266, 266, 298, 266, 298, 266));
}

}  // namespace
}  // namespace espalier
