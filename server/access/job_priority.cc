#include "server/access/job_priority.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace espalier {

absl::Status CheckPriority(const std::string& field, int32_t priority) {
  if (priority >= -kMostPriority && priority <= kMostPriority) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", priority, "; ", -kMostPriority,
                                                 " to ", kMostPriority, " are accepted"));
}

int32_t PriorityAmongOwners(const Caller& caller, int32_t priority) {
  return caller.Has(Role::kAdmin) ? priority : std::min(priority, caller.max_priority);
}

std::string PriorityNote(const Caller& caller, int32_t priority) {
  const int32_t counts = PriorityAmongOwners(caller, priority);
  if (counts == priority) return "";
  return absl::StrCat("the priority ", priority, " counts among the jobs of ", caller.owner,
                      "; before other owners' jobs it counts as ", counts,
                      " (max-priority=N of an API key raises that)");
}

}  // namespace espalier
