#include "tests/benchmarks/measured_machine.h"

#include <cstdio>

#include "server/jobs/operator_programs.h"
#include "tests/benchmarks/workload.h"
#include "worker/measure.h"

namespace espalier {
namespace {

// The coordinator asks for 3: here the planner's error is of interest, not that of a hasty
// measurement.
constexpr int kRepetitions = 9;

}  // namespace

MeasuredMachine::MeasuredMachine()
    : measured_(&analytic_, [this](const OpDef& def, const NodeTypes& shard, const proto::Device&) {
        return Measure(def, shard);
      }) {}

absl::StatusOr<std::unique_ptr<MeasuredMachine>> MeasuredMachine::Make(int threads,
                                                                       bool with_link) {
  std::unique_ptr<MeasuredMachine> machine(new MeasuredMachine);
  machine->device_ = NewCpuDevice({threads, int64_t{8} << 30});
  absl::StatusOr<proto::Device> calibrated = Calibrate(machine->device_.get());
  if (!calibrated.ok()) return calibrated.status();
  machine->calibrated_ = *calibrated;
  if (with_link) {
    absl::StatusOr<LinkMeasurement> link = MeasureLinkBetweenRanks();
    if (!link.ok()) return link.status();
    machine->link_ = *link;
  }
  return machine;
}

Machine MeasuredMachine::Devices(int count) const {
  Machine machine;
  machine.devices.assign(count, calibrated_);
  machine.link = link_.sum;
  return machine;
}

std::optional<CostModel::Times> MeasuredMachine::Measure(const OpDef& def, const NodeTypes& shard) {
  const double start = Seconds();
  CostModel::Times times;
  bool forward = true;
  for (const proto::Program& program : OperatorPrograms(def, shard)) {
    absl::StatusOr<double> seconds = MeasureProgram(program, kRepetitions, device_.get());
    if (!seconds.ok()) {
      std::fprintf(stderr, "measuring %s: %s\n", def.name.c_str(),
                   seconds.status().ToString().c_str());
      return std::nullopt;
    }
    (forward ? times.forward : times.backward) = *seconds;
    forward = false;
  }
  measuring_seconds_ += Seconds() - start;
  return times;
}

}  // namespace espalier
