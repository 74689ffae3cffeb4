// A runner with concurrent steps, for tests: wraps another runner, and runs each step as late as
// possible, when End is called, in order.
#pragma once

#include <algorithm>
#include <deque>

#include "absl/status/status.h"
#include "serving/runner/model_runner.h"

namespace espalier {

class PipelinedModelRunner : public ModelRunner {
 public:
  // `inner` must outlive it.
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
  // Steps in flight belong to the cache of their begin, so the number changes only between them.
  bool is_to_move() override { return inner_.is_to_move(); }
  uint64_t cache_generation() override {
    if (begun_.empty()) generation_ = inner_.cache_generation();
    return generation_;
  }

  int open() const { return static_cast<int>(begun_.size()); }  // steps in flight
  int most() const { return most_; }                            // most steps in flight at once
  int64_t steps() const { return steps_; }                      // steps begun
  int64_t together() const { return together_; }  // of these, while others were in flight

 private:
  ModelRunner& inner_;
  const int concurrent_steps_;
  std::deque<RunnerBatch> begun_;
  uint64_t generation_ = 0;
  int most_ = 0;
  int64_t steps_ = 0, together_ = 0;
};

}  // namespace espalier
