// A model runner whose steps take a given time on a simulated clock.
#pragma once

#include <functional>
#include <utility>

#include "serving/runner/model_runner.h"

namespace espalier {

class SimulatedLatencyRunner : public ModelRunner {
 public:
  using Cost = std::function<double(int rows)>;  // seconds

  // `inner` and `clock` must outlive this runner.
  SimulatedLatencyRunner(ModelRunner* inner, double* clock, Cost cost)
      : inner_(inner), clock_(clock), cost_(std::move(cost)) {}

  RunnerLimits limits() const override { return inner_->limits(); }
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override {
    *clock_ += cost_(batch.rows());
    ++steps_;
    return inner_->Step(batch, logits);
  }
  int64_t steps() const { return steps_; }

 private:
  ModelRunner* inner_;
  double* clock_;
  Cost cost_;
  int64_t steps_ = 0;
};

}  // namespace espalier
