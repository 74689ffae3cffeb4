// The order of paged_attention's inputs; ops/operators/paged_attention.cc documents them.
#pragma once

namespace espalier::paged_attention {

enum Input {
  kQ,
  kK,
  kV,
  kKCache,
  kVCache,
  kSlots,
  kRowSequence,
  kRowPrefix,
  kAncestorStart,
  kAncestorSlots,
  kSequenceStart,
  kSequenceSlots,
  kSlopes,
  kKScale,
  kVScale,
  kNumInputs
};

}  // namespace espalier::paged_attention
