// The plans whose predicted and measured steps predicted_vs_measured.cc compares.
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

// What `work` is planned as on `devices` of `machine`, without a plan to begin from.
PlanProblem ProblemOf(const OpRegistry& registry, const Workload& work, MeasuredMachine& machine,
                      int devices);

// Of 1 to `max_devices` devices: one alone, with and without swaps; every kind of axis split; two
// kinds at once; operators dealt out to devices; halves behind each other, and as a pipeline where
// the model can be cut into micro-batches; shared-out optimisers and parameters. Left out are
// plans that come out as earlier ones, and what cannot be made to fit into less memory.
absl::StatusOr<std::vector<NamedPlan>> MeasuredPlans(const OpRegistry& registry,
                                                     const Workload& work, MeasuredMachine& machine,
                                                     int max_devices);

}  // namespace espalier
