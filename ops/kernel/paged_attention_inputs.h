// The order of paged attention's inputs: what they are says ops/operators/paged_attention.cc.
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
