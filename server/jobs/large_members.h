// Which idle workers a job takes that had too little memory.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "server/jobs/worker_memory.h"
#include "server/membership/worker_registry.h"

namespace espalier {

WorkerMemory MemoryOfMembers(absl::Span<const Member> members);

// The largest first, for a job that may not use all of them; without those that are smaller than
// any that sufficed, where the others are enough: one of them may be what no plan fits into.
std::vector<Member> LargestMembers(std::vector<Member> members, const WorkerMemory& enough);

}  // namespace espalier
