// A range of a runner's KV slots as a separate runner, so that several engines can alternate steps
// on one model without overwriting each other's KV cache.
#pragma once

#include "serving/runner/model_runner.h"

namespace espalier {

class SlotRangeRunner : public ModelRunner {
 public:
  // REQUIRES: first + slots <= inner's limits().kv_slots; `inner` outlives this.
  SlotRangeRunner(ModelRunner* inner, int first, int slots)
      : inner_(inner), first_(first), slots_(slots) {}

  RunnerLimits limits() const override;
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override;
  uint64_t cache_generation() override { return inner_->cache_generation(); }

 private:
  ModelRunner* inner_;
  const int first_, slots_;
  RunnerBatch moved_;  // reused in every step
};

}  // namespace espalier
