// How far a caller may put jobs before those of others.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/net/caller.h"

namespace espalier {

// TrainingSpec.priority is -kMostPriority to kMostPriority.
inline constexpr int32_t kMostPriority = 1000;

// Returns InvalidArgument naming the field.
absl::Status CheckPriority(const std::string& field, int32_t priority);

// What counts against other owners' jobs of the priority that a caller wants. Among its own jobs an
// owner orders freely; above 0 an admin, and a key with max-priority=N up to N, comes before
// others.
int32_t PriorityAmongOwners(const Caller& caller, int32_t priority);

// Tells a caller what does not count; empty if all does.
std::string PriorityNote(const Caller& caller, int32_t priority);

}  // namespace espalier
