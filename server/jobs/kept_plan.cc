#include "server/jobs/kept_plan.h"

namespace espalier {

bool CanKeepPlan(const v1::Plan& plan, const std::string& graph_fingerprint,
                 const std::vector<v1::Device>& devices) {
  if (plan.operators().empty() || plan.graph_fingerprint() != graph_fingerprint ||
      plan.devices_size() != static_cast<int>(devices.size())) {
    return false;
  }
  for (int rank = 0; rank < plan.devices_size(); ++rank) {
    const v1::Device& planned = plan.devices(rank);
    const v1::Device& present = devices[static_cast<size_t>(rank)];
    if (planned.kind() != present.kind() || planned.model() != present.model() ||
        planned.memory_bytes() > present.memory_bytes()) {
      return false;
    }
  }
  return true;
}

}  // namespace espalier
