// How a kernel on the device reports an index that is out of range: the first one to find such an
// index writes a record into host memory, and the device's next Synchronize turns it into an error.
// The kernel goes on with a harmless value.
#pragma once

#include <cstdint>

namespace espalier {

enum class FaultKind : int32_t {
  kNone = 0,
  kEmbeddingId,
  kGatherIndex,
  kLabel,
  kPosition,
  kCacheSlot,
  kSequence,
  kGatherElementsIndex,
  kGatherNdIndex,
  kScatterElementsIndex,
  kScatterNdIndex,
  kSequenceLength,
  kDivisor,  // an integer divided by zero: no numbers
  kModulus,
  kUnpoolIndex,
  kRecurrentLength,
  kExpert,
  kAdapter,
};

struct FaultRecord {
  FaultKind kind = FaultKind::kNone;
  int64_t row = 0;    // which index, in row-major order
  int64_t value = 0;  // what it was
  int64_t limit = 0;  // it should have been below
};

// Passed to kernels by value.
struct FaultSink {
  int32_t* claimed = nullptr;     // device memory
  FaultRecord* record = nullptr;  // page-locked host memory, mapped into the device

#if defined(__CUDACC__) || defined(ESPALIER_CUDA_PTX_HEADER)
  __device__ void Report(FaultKind kind, int64_t row, int64_t value, int64_t limit) const {
    if (atomicCAS(claimed, 0, 1) != 0) return;
    record->row = row;
    record->value = value;
    record->limit = limit;
    record->kind = kind;
    __threadfence_system();
  }
#endif
};

}  // namespace espalier
