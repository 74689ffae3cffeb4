// A runner that takes several steps at once, for tests: around any other, which runs each step as
// late as it can be, when its end is asked for, and in order.
#pragma once

#include <algorithm>
#include <deque>

#include "absl/status/status.h"
#include "serving/runner/model_runner.h"

namespace espalier {

class PipelinedModelRunner : public ModelRunner {
 public:
  // `inner` outlives it.
  PipelinedModelRunner(ModelRunner& inner, int concurrent_steps)
      : inner_(inner), concurrent_steps_(concurrent_steps) {}

  RunnerLimits limits() const override {
    RunnerLimits limits = inner_.limits();
    limits.concurrent_steps = concurrent_steps_;
    return limits;
  }
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override {
    if (!begun_.empty()) return absl::InternalError("a Step between Begin and End");
    return inner_.Step(batch, logits);
  }
  absl::Status Begin(const RunnerBatch& batch) override {
    if (static_cast<int>(begun_.size()) >= concurrent_steps_) {
      return absl::InternalError("more steps at once than there may be");
    }
    begun_.push_back(batch);
    most_ = std::max(most_, static_cast<int>(begun_.size()));
    ++steps_;
    together_ += begun_.size() > 1;
    return absl::OkStatus();
  }
  absl::Status End(RunnerOutput* logits) override {
    if (begun_.empty()) return absl::InternalError("End without Begin");
    const RunnerBatch batch = std::move(begun_.front());
    begun_.pop_front();
    return inner_.Step(batch, logits);
  }
  // As a runner does whose steps are of the cache that it had when they began.
  uint64_t cache_generation() override {
    if (begun_.empty()) generation_ = inner_.cache_generation();
    return generation_;
  }

  int open() const { return static_cast<int>(begun_.size()); }
  int most() const { return most_; }              // that were open at once
  int64_t steps() const { return steps_; }        // that were begun
  int64_t together() const { return together_; }  // of these, while others were open

 private:
  ModelRunner& inner_;
  const int concurrent_steps_;
  std::deque<RunnerBatch> begun_;
  uint64_t generation_ = 0;
  int most_ = 0;
  int64_t steps_ = 0, together_ = 0;
};

}  // namespace espalier
