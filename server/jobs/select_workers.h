// Which idle workers a job takes that had too little memory.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "server/jobs/worker_memory.h"
#include "server/membership/worker_registry.h"

namespace espalier {

WorkerMemory MemoryOfMembers(absl::Span<const Member> members);

// The largest of them, at most `most`, in the order in which they were; without those that are
// smaller than any that sufficed, where the others are enough: one of them may be what no plan fits
// into.
std::vector<Member> SelectLargestWorkers(const std::vector<Member>& members, const WorkerMemory& enough,
                                   size_t most);

}  // namespace espalier
