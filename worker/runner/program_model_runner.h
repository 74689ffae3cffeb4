// The serving engine's ModelRunner over a serving program: the executor that trains also serves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/program.pb.h"
#include "serving/engine/model_runner.h"
#include "worker/device/device.h"
#include "worker/executor/executor.h"

namespace espalier {

// Fills every parameter of the program from the safetensors files of a folder in Hugging Face
// layout (model.safetensors, or model.safetensors.index.json and its shards), by name, converting
// between f32, bf16 and f16. NotFound names a missing tensor, InvalidArgument one of another shape.
absl::Status LoadWeights(const std::string& folder, Executor& executor);

class ProgramModelRunner : public ModelRunner {
 public:
  // `program` comes from LowerServing (planner/planner.h) of BuildLlamaServing
  // (ops/models/llama.h). `folder` holds the weights; empty: they keep the program's initial
  // values. `max_positions` is the model's max_position_embeddings. `device` outlives the runner
  // and serves it alone.
  static absl::StatusOr<std::unique_ptr<ProgramModelRunner>> Create(const proto::Program& program,
                                                                    const std::string& folder,
                                                                    int max_positions,
                                                                    Device* device);

  RunnerLimits limits() const override { return limits_; }
  absl::Status Step(const RunnerBatch& batch, RunnerLogits* logits) override;

  Executor& executor() { return *executor_; }

 private:
  enum Input {
    kTokens,
    kPositions,
    kSlots,
    kRowSequence,
    kRowPrefix,
    kAncestorStart,
    kAncestorSlots,
    kSequenceStart,
    kSequenceSlots,
    kLogitRows,
    kNumInputs,
  };

  ProgramModelRunner() = default;
  absl::Status FindBuffers();
  absl::Status Check(const RunnerBatch& batch) const;

  std::unique_ptr<Executor> executor_;
  RunnerLimits limits_;
  int max_output_rows_ = 0;
  int inputs_[kNumInputs] = {};
  int logits_ = -1;
};

}  // namespace espalier
