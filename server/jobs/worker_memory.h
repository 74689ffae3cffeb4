// Memory of a job's workers, to compare what a plan needed with what is available.
#pragma once

#include <algorithm>
#include <cstdint>

#include "espalier/v1/cluster.pb.h"

namespace espalier {

struct WorkerMemory {
  int workers = 0;       // 0: unknown
  int64_t bytes = 0;     // total
  int64_t smallest = 0;  // bytes of the smallest worker
  int64_t largest = 0;   // bytes of the largest worker

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

// Returns true if a plan may fit into `b` although none fits into `a`. Equal shards of a model are
// limited by the smallest worker, one large operator by the largest, everything else by the total.
inline bool IsLessInAny(const WorkerMemory& a, const WorkerMemory& b) {
  return a.workers < b.workers || a.bytes < b.bytes || a.smallest < b.smallest ||
         a.largest < b.largest;
}

}  // namespace espalier
