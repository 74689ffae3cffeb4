// The memory of a job's workers: what sufficed for a plan is compared with what there is.
#pragma once

#include <algorithm>
#include <cstdint>

#include "espalier/v1/cluster.pb.h"

namespace espalier {

struct WorkerMemory {
  int workers = 0;       // 0: nothing is known
  int64_t bytes = 0;     // of all
  int64_t smallest = 0;  // bytes of the one that has the least
  int64_t largest = 0;   // bytes of the one that has the most

  bool operator==(const WorkerMemory&) const = default;
};

template <typename Devices>
WorkerMemory MemoryOf(const Devices& devices) {
  WorkerMemory memory;
  for (const v1::Device& device : devices) {
    const int64_t bytes = device.memory_bytes();
    memory.smallest = memory.workers == 0 ? bytes : std::min(memory.smallest, bytes);
    memory.largest = std::max(memory.largest, bytes);
    memory.bytes += bytes;
    ++memory.workers;
  }
  return memory;
}

// Whether a plan may fit into `b` though none fits into `a`. Equal parts of a model want the
// smallest worker to be large, one large operator the largest, others the sum.
inline bool IsLessInAny(const WorkerMemory& a, const WorkerMemory& b) {
  return a.workers < b.workers || a.bytes < b.bytes || a.smallest < b.smallest ||
         a.largest < b.largest;
}

}  // namespace espalier
