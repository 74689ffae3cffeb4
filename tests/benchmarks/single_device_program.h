// The training program of a workload on one device.
#pragma once

#include "absl/status/statusor.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/program.pb.h"
#include "ops/schema/registry.h"
#include "tests/benchmarks/workload.h"

namespace espalier {

absl::StatusOr<v1::Program> SingleDeviceProgram(const OpRegistry& registry, const Workload& work,
                                                const v1::Device& device);

}  // namespace espalier
