#include "worker/trainer/probe_observer.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// gRPC's default limit is 4 MiB; the coordinator and its workers allow more (server/grpc_limits.h).
constexpr size_t kMaxProbeEventBytes = 2 << 20;

}  // namespace

absl::Status EmitProbeResults(TrainingRun& run, int64_t step, bool evaluation,
                              std::vector<v1::RankProbeResult> results) {
  v1::RunEvent event;
  size_t bytes = 0;
  const auto flush = [&] {
    if (event.probes().results().empty()) return absl::OkStatus();
    event.mutable_probes()->set_step(step);
    event.mutable_probes()->set_evaluation(evaluation);
    absl::Status s = run.Emit(event);
    event.Clear();
    bytes = 0;
    return s;
  };
  for (v1::RankProbeResult& result : results) {
    const size_t more = result.ByteSizeLong();
    if (bytes + more > kMaxProbeEventBytes) {
      if (absl::Status s = flush(); !s.ok()) return s;
    }
    bytes += more;
    *event.mutable_probes()->add_results() = std::move(result);
  }
  return flush();
}

bool ProbeObserver::IsRead(int64_t step) const {
  return step >= steps_.first() && step < steps_.end() &&
         (step - steps_.first()) % std::max<int64_t>(1, steps_.every()) == 0;
}

absl::Status ProbeObserver::OnStepBegin(TrainingRun&, int64_t step, bool*) {
  return IsRead(step) ? reader_->BeginStep() : absl::OkStatus();
}

absl::Status ProbeObserver::OnStepEnd(TrainingRun&, int64_t step, StepReports&) {
  if (!IsRead(step)) return absl::OkStatus();
  absl::StatusOr<std::vector<v1::RankProbeResult>> results = reader_->EndStep();
  if (!results.ok()) return results.status();
  results_ = *std::move(results);
  return absl::OkStatus();
}

absl::Status ProbeObserver::OnStepReported(TrainingRun& run, int64_t step, const StepReports&) {
  return EmitProbeResults(run, step, /*evaluation=*/false, std::exchange(results_, {}));
}

}  // namespace espalier
