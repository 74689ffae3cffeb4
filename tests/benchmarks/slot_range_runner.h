// A part of a runner's KV slots as a runner of its own: engines that each have one can take turns
// at every step, and none finds its requests' keys and values written over.
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
  RunnerBatch moved_;  // its memory serves every step
};

}  // namespace espalier
