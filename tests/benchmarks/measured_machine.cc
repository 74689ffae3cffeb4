#include "tests/benchmarks/measured_machine.h"

#include <cstdio>
#include <thread>
#include <vector>

#include "server/jobs/operator_programs.h"
#include "tests/benchmarks/workload.h"
#include "worker/measure.h"

namespace espalier {
namespace {

// More than the coordinator's 3, so that measurement errors do not count as the planner's.
constexpr int kRepetitions = 9;

}  // namespace

MeasuredMachine::MeasuredMachine()
    : measured_(&analytic_, [this](const OpDef& def, const NodeTypes& shard, const v1::Device&) {
        return Measure(def, shard);
      }) {}

absl::StatusOr<std::unique_ptr<MeasuredMachine>> MeasuredMachine::Make(int threads, int ranks,
                                                                       const std::string& profile) {
  std::unique_ptr<MeasuredMachine> machine(new MeasuredMachine);
  machine->device_ = NewCpuDevice({threads, int64_t{8} << 30});
  absl::StatusOr<v1::Device> calibrated = Calibrate(machine->device_.get());
  if (!calibrated.ok()) return calibrated.status();
  machine->calibrated_ = *calibrated;
  CommunicationProfiles known;
  if (!profile.empty()) {
    absl::Status status = LoadProfile(profile, &machine->measured_, &known);
    if (!status.ok()) return status;
  }
  if (ranks < 2) return machine;
  machine->calibrated_.set_host("this host");
  machine->calibrated_.set_host_cores(static_cast<int>(std::thread::hardware_concurrency()));
  for (int n = 2; n <= ranks; ++n) {
    const std::string key = CommunicationKey(std::vector<v1::Device>(n, machine->calibrated_));
    const auto found = known.find(key);
    absl::StatusOr<v1::CommunicationProfile> measured =
        found != known.end() ? found->second : MeasureCommunicationBetweenRanks(n);
    if (!measured.ok()) return measured.status();
    absl::StatusOr<CommunicationModel> model = CommunicationModel::Create(*measured);
    if (!model.ok()) return model.status();
    machine->communication_[n] = *std::move(measured);
    machine->models_[n] = std::make_shared<const CommunicationModel>(*std::move(model));
  }
  return machine;
}

std::string MeasuredMachine::Profile() const {
  CommunicationProfiles communication;
  for (const auto& [n, profile] : communication_) {
    communication[CommunicationKey(std::vector<v1::Device>(n, calibrated_))] = profile;
  }
  return SaveProfile(measured_, communication);
}

Machine MeasuredMachine::Devices(int count) const {
  Machine machine;
  machine.devices.assign(count, calibrated_);
  if (const auto found = models_.find(count); found != models_.end()) {
    machine.communication = found->second;
  }
  return machine;
}

std::optional<CostModel::Times> MeasuredMachine::Measure(const OpDef& def, const NodeTypes& shard) {
  const double start = Seconds();
  CostModel::Times times;
  bool forward = true;
  for (const v1::Program& program : OperatorPrograms(def, shard)) {
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
