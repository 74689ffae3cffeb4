#include "tests/benchmarks/slot_range_runner.h"

#include "absl/strings/str_cat.h"

namespace espalier {

RunnerLimits SlotRangeRunner::limits() const {
  RunnerLimits limits = inner_->limits();
  limits.kv_slots = slots_;
  return limits;
}

absl::Status SlotRangeRunner::Step(const RunnerBatch& batch, RunnerOutput* logits) {
  moved_ = batch;
  for (auto* list : {&moved_.slots, &moved_.ancestor_slots, &moved_.sequence_slots}) {
    for (int32_t& slot : *list) {
      if (slot < 0 || slot >= slots_) {
        return absl::InvalidArgumentError(
            absl::StrCat("slot ", slot, ", expected 0 to ", slots_ - 1));
      }
      slot += first_;
    }
  }
  return inner_->Step(moved_, logits);
}

}  // namespace espalier
