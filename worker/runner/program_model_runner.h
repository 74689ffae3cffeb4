// The serving engine's ModelRunner over a serving program: the executor that trains also serves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "models/model.h"
#include "serving/runner/model_runner.h"
#include "worker/device/device.h"
#include "worker/executor/executor.h"
#include "worker/runner/weight_load_options.h"

namespace espalier {

// Fills every parameter of the program from the weight files of a model's folder (OpenWeights in
// models/weights) according to `map`, converting between f32, bf16 and f16. Returns NotFound naming
// a missing tensor; InvalidArgument naming one of another shape or type, or one that no parameter
// uses.
absl::Status LoadWeights(const std::string& folder, const WeightMap& map, Executor& executor,
                         const WeightLoadOptions& loading = {});

class ProgramModelRunner : public ModelRunner {
 public:
  // `program` is LowerServing (planner/planner.h) of a graph by BuildServing (models/model.h),
  // which also gives `weights`. An empty `folder` keeps the program's initial values.
  // `max_positions` is the longest sequence the program supports. The runner uses `device`
  // exclusively; it must outlive the runner.
  static absl::StatusOr<std::unique_ptr<ProgramModelRunner>> Create(
      const v1::Program& program, const std::string& folder, int max_positions, Device* device,
      const WeightMap& weights = {}, const WeightLoadOptions& loading = {});

  // One rank of a model sharded over several devices (LowerServing with degrees). The program has
  // only the inputs that it reads; only one rank has logits. `limits` and `max_output_rows` are
  // those of the whole model, so that all ranks reject the same batches. A program with peers needs
  // executor().SetCommunicator before the first step.
  static absl::StatusOr<std::unique_ptr<ProgramModelRunner>> CreateRank(
      const v1::Program& program, const std::string& folder, const RunnerLimits& limits,
      int max_output_rows, Device* device, const WeightMap& weights = {},
      const WeightLoadOptions& loading = {});

  RunnerLimits limits() const override { return limits_; }
  bool has_logits() const { return logits_ >= 0; }
  // Returns the errors that Step returns before it changes anything.
  absl::Status Check(const RunnerBatch& batch) const;
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override;
  // Step for a batch that passed Check.
  absl::Status StepChecked(const RunnerBatch& batch, RunnerOutput* logits);

  Executor& executor() { return *executor_; }

  // Bytes kept between steps, excluding parameters.
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
  int logits_ = -1;              // -1: none
  int hidden_ = -1;              // -1: none
};

}  // namespace espalier
