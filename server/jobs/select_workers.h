// Chooses the idle workers of a job whose last workers had too little memory.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "server/jobs/worker_memory.h"
#include "server/membership/worker_registry.h"

namespace espalier {

WorkerMemory MemoryOfMembers(absl::Span<const Member> members);

// Returns the largest of `members`, at most `most`, in their original order. Leaves out workers
// smaller than the smallest that sufficed before (`enough`) if the others are enough: one small
// worker can make every plan infeasible.
std::vector<Member> SelectLargestWorkers(const std::vector<Member>& members,
                                         const WorkerMemory& enough, size_t most);

}  // namespace espalier
