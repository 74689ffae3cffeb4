// The plans whose predicted and measured step times predicted_vs_measured.cc compares.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/plan.pb.h"
#include "tests/benchmarks/measured_machine.h"
#include "tests/benchmarks/workload.h"

namespace espalier {

struct NamedPlan {
  std::string name;
  v1::Plan plan;
};

// Returns the planning problem of `work` on `devices` devices of `machine`.
PlanProblem ProblemOf(const OpRegistry& registry, const Workload& work, MeasuredMachine& machine,
                      int devices);

// Returns plans for 1 to `max_devices` devices: a single device, with and without swaps; each kind
// of axis partitioned; two kinds at once; operators placed on different devices; two stages,
// pipelined if the model allows micro-batches; ZeRO stages. Omits duplicates, and low-memory
// variants that do not fit.
absl::StatusOr<std::vector<NamedPlan>> MeasuredPlans(const OpRegistry& registry,
                                                     const Workload& work, MeasuredMachine& machine,
                                                     int max_devices);

}  // namespace espalier
