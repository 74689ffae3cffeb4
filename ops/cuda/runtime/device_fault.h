// Reports of invalid input from device code. The first thread that finds an index out of range
// writes a record into host memory; the device's next Synchronize turns it into an error. The
// kernel continues with a valid value.
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
  kDivisor,  // an integer divided by zero; the record has no value
  kModulus,
  kUnpoolIndex,
  kRecurrentLength,
  kExpert,
  kAdapter,
};

struct FaultRecord {
  FaultKind kind = FaultKind::kNone;
  int64_t row = 0;    // position of the index, in row-major order
  int64_t value = 0;  // the index
  int64_t limit = 0;  // its exclusive bound
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
