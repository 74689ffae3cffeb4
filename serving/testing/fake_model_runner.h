// A model runner for tests, around any function from the tokens that a row attends to to its
// logits. It stores only (token, position, adapter) per KV slot, and reconstructs a row's path from
// the slots that the batch names; so a wrong mask, prefix, ancestor, position, slot or adapter
// gives other logits or an error. Hidden states, if the limits have them, are the first logits of
// the row. In every second step it samples as row_outputs requests, in the others it returns all
// logits.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "serving/runner/model_runner.h"

namespace espalier {

using FakeModel = std::function<std::vector<float>(absl::Span<const int> path)>;

// Logits are a hash of the whole path: deterministic, without structure.
FakeModel HashModel(uint64_t seed, int vocabulary, float scale = 3);

// For a fraction `agreement` of all paths (by hash), the logits of `base`; otherwise those of
// `other`.
FakeModel AgreeingModel(FakeModel base, FakeModel other, double agreement, uint64_t seed);

// Prefers the token that `base` finds least probable: never agrees with it greedily.
FakeModel DisagreeingModel(FakeModel base);

// The greedy continuation of `prompt` by this model.
std::vector<int> GreedyContinuation(const FakeModel& model, std::vector<int> prompt, int count);

class FakeModelRunner : public ModelRunner {
 public:
  // Limits that no test reaches, to be reduced by tests.
  static RunnerLimits LargeLimits(int vocabulary);

  FakeModelRunner(RunnerLimits limits, FakeModel model);

  RunnerLimits limits() const override { return limits_; }
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override;

  // Sets the models with each LoRA adapter, and limits().adapters.
  void SetAdapters(std::vector<FakeModel> adapters) {
    limits_.adapters = static_cast<int>(adapters.size());
    adapters_ = std::move(adapters);
  }

  int64_t steps() const { return steps_; }
  int64_t rows() const { return rows_; }
  int largest_batch() const { return largest_batch_; }
  // Rows whose logits were requested.
  int64_t rows_with_logits() const { return rows_with_logits_; }
  int64_t choices() const { return choices_; }  // rows that were sampled
  // Step number `step` (from 1) and later ones fail with `code`; 0: none.
  void FailFrom(int64_t step, absl::StatusCode code = absl::StatusCode::kUnavailable) {
    fail_from_ = step;
    failure_ = code;
  }
  // Loses the content of the KV cache.
  void LoseCache();
  uint64_t cache_generation() override {
    if (std::exchange(is_to_move_, false)) LoseCache();
    return cache_generation_;
  }
  // The next call of cache_generation loses the content of the KV cache.
  void Move() { is_to_move_ = true; }
  bool is_to_move() override { return is_to_move_; }

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
  int64_t rows_with_logits_ = 0;
  int64_t choices_ = 0;
  int64_t fail_from_ = 0;
  absl::StatusCode failure_ = absl::StatusCode::kUnavailable;
  uint64_t cache_generation_ = 0;
  bool is_to_move_ = false;
};

}  // namespace espalier
