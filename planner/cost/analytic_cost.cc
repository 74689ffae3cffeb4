#include "planner/cost/analytic_cost.h"

#include <algorithm>

#include "planner/machine/rates.h"

namespace espalier {

CostModel::Times AnalyticCost::Measure(const OpDef& def, const NodeTypes& shard,
                                       const v1::Device& measured) {
  const v1::Device device = WithDefaults(measured);
  auto seconds = [&](const Cost& cost) {
    return std::max(cost.flops / device.matmul_flops(), cost.bytes / device.memory_bandwidth()) +
           device.op_overhead_seconds();
  };
  const Cost forward = ForwardCost(def, shard);
  Times times;
  times.forward = seconds(forward);
  if (def.has_gradient()) {
    const Cost backward =
        def.gradient->cost ? def.gradient->cost(shard) : Cost{2 * forward.flops, 2 * forward.bytes};
    times.backward = seconds(backward);
  }
  return times;
}

}  // namespace espalier
