#include "worker/trainer/trainer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace espalier {

Trainer::Trainer(TrainerOptions options) : options_(std::move(options)) {}

absl::Status Trainer::CheckNotStopped() const {
  return options_.check_not_stopped ? options_.check_not_stopped() : absl::OkStatus();
}

absl::Status Trainer::Notify(absl::string_view place,
                             const std::function<absl::Status(StepObserver&)>& method) {
  for (StepObserver* observer : options_.observers) {
    absl::Status status = method(*observer);
    if (status.ok()) continue;
    // The innermost place counts: OnCheckpoint may fail inside another observer's method.
    if (failed_at_.empty()) failed_at_ = absl::StrCat(observer->name(), ", ", place);
    return status;
  }
  return absl::OkStatus();
}

absl::Status Trainer::Emit(const v1::RunEvent& event) {
  if (absl::Status s = options_.emit(event); !s.ok()) return s;
  if (event.has_shard()) {
    return Notify(absl::StrCat("OnCheckpoint after step ", event.shard().steps_done()),
                  [&](StepObserver& o) { return o.OnCheckpoint(*this, event.shard()); });
  }
  if (event.has_evaluation()) {
    return Notify(absl::StrCat("OnEvaluation after step ", event.evaluation().step()),
                  [&](StepObserver& o) { return o.OnEvaluation(*this, event.evaluation()); });
  }
  return absl::OkStatus();
}

absl::Status Trainer::Report(int64_t step, const StepReports& reports) {
  v1::RunEvent event;
  v1::StepReport* report = event.mutable_step();
  report->set_step(step);
  report->set_seconds(reports.seconds);
  for (const auto& [name, value] : reports.values) (*report->mutable_values())[name] = value;
  int64_t tensor_bytes = 0;
  for (const auto& [name, tensor] : reports.tensors) {
    if (absl::Status s = CheckTensor(tensor); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat("tensor '", name, "' in the report of step ", step,
                                                 ": ", s.message()));
    }
    tensor_bytes += static_cast<int64_t>(tensor.data.size());
    if (tensor_bytes > kMaxReportTensorBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the tensors in the report of step ", step, " have more than ", kMaxReportTensorBytes,
          " bytes with '", name, "'; attach smaller or fewer tensors, or write them to files"));
    }
    (*report->mutable_tensors())[name] = ToProto(tensor);
  }
  return Emit(event);
}

absl::Status Trainer::Begin() {
  return Notify("OnRunBegin", [&](StepObserver& o) { return o.OnRunBegin(*this); });
}

absl::Status Trainer::RunStep(int64_t step) {
  if (absl::Status stopped = CheckNotStopped(); !stopped.ok()) return stopped;
  bool profile = false;
  absl::Status s = Notify(absl::StrCat("OnStepBegin of step ", step),
                          [&](StepObserver& o) { return o.OnStepBegin(*this, step, &profile); });
  if (!s.ok()) return s;
  const absl::Time start = absl::Now();
  absl::StatusOr<StepResult> result = options_.executor->Step(step, profile);
  if (!result.ok()) {
    // A stop aborts the communicator, so the step's own error would hide the reason.
    if (absl::Status stopped = CheckNotStopped(); !stopped.ok()) return stopped;
    return result.status();
  }
  StepReports reports;
  reports.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  reports.values = std::move(result->values);
  // The same on all ranks, so only one reports it.
  if (options_.executor->program().rank() == 0) {
    reports.values["learning_rate"] = result->learning_rate;
  }
  reports.profile = std::move(result->profile);
  s = Notify(absl::StrCat("OnStepEnd of step ", step),
             [&](StepObserver& o) { return o.OnStepEnd(*this, step, reports); });
  if (s.ok()) s = Report(step, reports);
  if (!s.ok()) return s;
  return Notify(absl::StrCat("OnStepReported of step ", step),
                [&](StepObserver& o) { return o.OnStepReported(*this, step, reports); });
}

absl::Status Trainer::End() {
  absl::Status s = Notify("OnRunEnd", [&](StepObserver& o) { return o.OnRunEnd(*this); });
  if (!s.ok()) return s;
  return options_.communicator != nullptr ? options_.communicator->Flush() : absl::OkStatus();
}

void Trainer::Fail(const absl::Status& status) {
  for (StepObserver* observer : options_.observers) observer->OnRunFailed(*this, status);
}

absl::Status Trainer::RunRange() {
  if (absl::Status s = Begin(); !s.ok()) return s;
  for (int64_t step = options_.begin; step < options_.end; ++step) {
    if (absl::Status s = RunStep(step); !s.ok()) return s;
  }
  return End();
}

absl::Status Trainer::Run() {
  absl::Status status = RunRange();
  if (!status.ok()) Fail(status);
  return status;
}

}  // namespace espalier
