// Forwards steps to another runner. While `watching`, it requests all logits, whatever row_outputs
// says, and records those of the last row and the smallest margin of any row. Otherwise steps run
// as in service: the runner samples, after logit edits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "serving/runner/model_runner.h"

namespace espalier {

class RecordingModelRunner : public ModelRunner {
 public:
  explicit RecordingModelRunner(ModelRunner& inner) : inner_(inner) {}

  RunnerLimits limits() const override { return inner_.limits(); }
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override {
    if (!watching) return inner_.Step(batch, logits);
    absl::Status status = inner_.Step(Shown(batch), logits);
    if (status.ok()) Watch(batch.logit_rows.size(), *logits);
    return status;
  }
  absl::Status Begin(const RunnerBatch& batch) override {
    absl::Status status = inner_.Begin(watching ? Shown(batch) : batch);
    if (status.ok()) watched_rows_.push_back(watching ? batch.logit_rows.size() : 0);
    return status;
  }
  absl::Status End(RunnerOutput* logits) override {
    absl::Status status = inner_.End(logits);
    if (status.ok() && watched_rows_.front() > 0) Watch(watched_rows_.front(), *logits);
    watched_rows_.pop_front();
    return status;
  }
  uint64_t cache_generation() override { return inner_.cache_generation(); }
  bool is_to_move() override { return inner_.is_to_move(); }

  bool watching = false;
  std::vector<float> last;
  double margin = INFINITY;

 private:
  static RunnerBatch Shown(const RunnerBatch& batch) {
    RunnerBatch shown = batch;
    shown.row_outputs.clear();
    return shown;
  }

  void Watch(size_t rows, const RunnerOutput& logits) {
    // The caller of the step reports a wrong size.
    if (logits.values.size() != rows * static_cast<size_t>(logits.vocabulary)) return;
    for (size_t i = 0; i < rows; ++i) {
      const float* row = logits.row(static_cast<int>(i));
      last.assign(row, row + logits.vocabulary);
      float best = -INFINITY, second = -INFINITY;
      for (const float logit : last) {
        second = std::max(second, std::min(best, logit));
        best = std::max(best, logit);
      }
      margin = std::min(margin, static_cast<double>(best) - second);
    }
  }

  ModelRunner& inner_;
  std::deque<size_t> watched_rows_;  // of each step in flight
};

}  // namespace espalier
