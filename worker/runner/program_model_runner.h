// The serving engine's ModelRunner over a serving program: the executor that trains also serves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/model.h"
#include "espalier/v1/program.pb.h"
#include "serving/runner/model_runner.h"
#include "worker/device/device.h"
#include "worker/executor/executor.h"
#include "worker/runner/weight_load_options.h"

namespace espalier {

// Fills every parameter of the program from the files of a model's folder (OpenWeights in
// models/weights), as `map` says, converting between f32, bf16 and f16. NotFound names a missing
// tensor; InvalidArgument one of another shape or type, or one that no parameter is made of.
absl::Status LoadWeights(const std::string& folder, const WeightMap& map, Executor& executor,
                         const WeightLoadOptions& loading = {});

class ProgramModelRunner : public ModelRunner {
 public:
  // `program` comes from LowerServing (planner/planner.h) of BuildServing (models/model.h),
  // which also gives `weights`. `folder` holds the weights; empty: they keep the program's initial
  // values. `max_positions` is the longest sequence that the program was made for. `device`
  // outlives the runner and serves it alone.
  static absl::StatusOr<std::unique_ptr<ProgramModelRunner>> Create(const v1::Program& program,
                                                                    const std::string& folder,
                                                                    int max_positions,
                                                                    Device* device,
                                                                    const WeightMap& weights = {});

  // One rank of a model that several devices share (the LowerServing that takes degrees): the
  // program has the inputs that it reads, and logits on one rank alone; elsewhere steps give none.
  // `limits` and `max_output_rows` are those of the whole model, so that all ranks refuse the same
  // batches. A program with peers needs executor().SetCommunicator before the first step.
  static absl::StatusOr<std::unique_ptr<ProgramModelRunner>> CreateRank(
      const v1::Program& program, const std::string& folder, const RunnerLimits& limits,
      int max_output_rows, Device* device, const WeightMap& weights = {},
      const WeightLoadOptions& loading = {});

  RunnerLimits limits() const override { return limits_; }
  bool has_logits() const { return logits_ >= 0; }
  // What Step refuses before anything is touched.
  absl::Status Check(const RunnerBatch& batch) const;
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override;
  // The same, for a batch that Check has let pass.
  absl::Status StepChecked(const RunnerBatch& batch, RunnerOutput* logits);

  Executor& executor() { return *executor_; }

  // What the program keeps between steps besides its parameters.
  int64_t kv_cache_bytes() const;

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
    kRowAdapter,
    kNumInputs,
  };

  ProgramModelRunner() = default;
  static absl::StatusOr<std::unique_ptr<ProgramModelRunner>> Make(const v1::Program& program,
                                                                  Device* device);
  absl::Status TakeLimits();  // from a program that has all inputs and the logits
  absl::Status FindHidden();
  absl::Status CheckBuffers() const;

  std::unique_ptr<Executor> executor_;
  RunnerLimits limits_;
  int max_output_rows_ = 0;
  int inputs_[kNumInputs] = {};  // -1: the program does not read it
  int logits_ = -1;              // likewise
  int hidden_ = -1;              // likewise
};

}  // namespace espalier
