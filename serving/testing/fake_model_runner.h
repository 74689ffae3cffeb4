// A model runner for tests, around any function from the tokens that a row sees to its logits. It
// keeps only (token, position, adapter) per KV slot, and puts a row's path together from the slots
// that the batch says it sees; so a wrong mask, prefix, ancestor, position, slot or adapter gives
// other logits or an error. Hidden states, if limits ask for them, are the row's first logits.
// Every other step gives choices where they are wished, and no logits.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "serving/runner/model_runner.h"

namespace espalier {

using FakeModel = std::function<std::vector<float>(absl::Span<const int> path)>;

// Logits are a hash of the whole path: deterministic, chaotic, and without structure.
FakeModel HashModel(uint64_t seed, int vocabulary, float scale = 3);

// After a share `agreement` of all paths (chosen by hash), the same logits as `base`; else as
// `other`.
FakeModel AgreeingModel(FakeModel base, FakeModel other, double agreement, uint64_t seed);

// Prefers the token that `base` likes least: never agrees with it greedily.
FakeModel DisagreeingModel(FakeModel base);

// The greedy continuation, by the model alone.
std::vector<int> GreedyContinuation(const FakeModel& model, std::vector<int> prompt, int count);

class FakeModelRunner : public ModelRunner {
 public:
  // Limits with room for everything, to be narrowed by the test.
  static RunnerLimits LargeLimits(int vocabulary);

  FakeModelRunner(RunnerLimits limits, FakeModel model);

  RunnerLimits limits() const override { return limits_; }
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override;

  // What the model is with each of its adapters; the limits then count them.
  void SetAdapters(std::vector<FakeModel> adapters) {
    limits_.adapters = static_cast<int>(adapters.size());
    adapters_ = std::move(adapters);
  }

  int64_t steps() const { return steps_; }
  int64_t rows() const { return rows_; }
  int largest_batch() const { return largest_batch_; }
  // Rows whose logits were wished.
  int64_t rows_shown() const { return rows_shown_; }
  int64_t choices() const { return choices_; }  // rows of which choices were given
  // Step number `step` (from 1) and those after it fail with `code`; 0: none.
  void FailFrom(int64_t step, absl::StatusCode code = absl::StatusCode::kUnavailable) {
    fail_from_ = step;
    failure_ = code;
  }
  // What the KV cache held is gone.
  void LoseCache();
  uint64_t cache_generation() override { return cache_generation_; }

 private:
  struct Slot {
    int token = -1;
    int position = -1;
    int adapter = -1;
  };

  absl::Status Check(const RunnerBatch& batch) const;
  absl::Status Path(const RunnerBatch& batch, int row, std::vector<int>* path) const;

  RunnerLimits limits_;
  FakeModel model_;
  std::vector<FakeModel> adapters_;
  std::vector<Slot> slots_;
  int64_t steps_ = 0;
  int64_t rows_ = 0;
  int largest_batch_ = 0;
  int64_t rows_shown_ = 0;
  int64_t choices_ = 0;
  int64_t fail_from_ = 0;
  absl::StatusCode failure_ = absl::StatusCode::kUnavailable;
  uint64_t cache_generation_ = 0;
};

}  // namespace espalier
