#include "worker/serving_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/runner/serving_proto.h"
#include "worker/runner/lora_adapters.h"

namespace espalier {
namespace {

constexpr double kDefaultPeerTimeoutSeconds = 60;
constexpr double kMaxPeerTimeoutSeconds = 3600;

absl::StatusOr<absl::Duration> Timeout(const char* field, double seconds, double otherwise) {
  if (seconds == 0) seconds = otherwise;
  if (!(seconds > 0 && seconds <= kMaxPeerTimeoutSeconds)) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", seconds, "; accepted: 0 (",
                                                   otherwise, ") to ", kMaxPeerTimeoutSeconds));
  }
  return absl::Seconds(seconds);
}

absl::StatusOr<PeerTimeouts> TimeoutsOf(const v1::StartServingRequest& request) {
  const absl::StatusOr<absl::Duration> wait =
      Timeout("peer_timeout_seconds", request.peer_timeout_seconds(), kDefaultPeerTimeoutSeconds);
  if (!wait.ok()) return wait.status();
  const absl::StatusOr<absl::Duration> rendezvous =
      Timeout("rendezvous_timeout_seconds", request.rendezvous_timeout_seconds(),
              absl::ToDoubleSeconds(*wait));
  if (!rendezvous.ok()) return rendezvous.status();
  return PeerTimeouts{*rendezvous, std::min(*wait, kMaxConnectTimeout), *wait};
}

absl::Status LoadAdapters(const v1::StartServingRequest& request, const WeightLoadOptions& loading,
                          Executor& executor) {
  const absl::StatusOr<AdapterParameters> parameters = AdaptersOf(request);
  if (!parameters.ok()) return parameters.status();
  if (request.limits().adapters() != request.adapter_folders_size()) {
    return absl::InvalidArgumentError(absl::StrCat("limits.adapters is ",
                                                   request.limits().adapters(), " for ",
                                                   request.adapter_folders_size(), " folders"));
  }
  if (request.adapter_folders_size() == 0) return absl::OkStatus();
  const absl::StatusOr<LoraAdapters> files = LoraAdapters::OpenFolders(
      *loading.files, {request.adapter_folders().begin(), request.adapter_folders().end()});
  if (!files.ok()) return files.status();
  return files->Load(*parameters, executor, loading);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServingJob>> ServingJob::Load(const v1::StartServingRequest& request,
                                                             const ServingJobOptions& options) {
  const absl::StatusOr<PeerTimeouts> timeouts = TimeoutsOf(request);
  if (!timeouts.ok()) return timeouts.status();
  const absl::StatusOr<RunnerLimits> limits = LimitsOf(request.limits());
  if (!limits.ok()) return limits.status();
  const absl::StatusOr<WeightMap> weights = WeightsOf(request);
  if (!weights.ok()) return weights.status();
  if (request.folder().empty()) {
    return absl::InvalidArgumentError("folder is empty; it must hold the model's weights");
  }
  std::unique_ptr<ServingJob> job(new ServingJob(options.device_thread));
  WeightLoadOptions loading;
  loading.files = &options.storage->files();
  loading.cancelled = options.cancelled;
  // Writes host memory on this thread; memory of other devices on the device's thread, in chunks
  // between the steps of other models.
  if (!options.device->is_host()) {
    loading.turn = [thread = options.device_thread](const std::function<absl::Status()>& work) {
      return thread->Run(work);
    };
  }
  absl::StatusOr<std::unique_ptr<ProgramModelRunner>> runner = ProgramModelRunner::CreateRank(
      request.program(), request.folder(), *limits, request.limits().max_output_rows(),
      options.device, *weights, loading);
  if (!runner.ok()) return runner.status();
  job->runner_ = *std::move(runner);
  const absl::Status adapted = LoadAdapters(request, loading, job->runner_->executor());
  if (!adapted.ok()) return adapted;
  const v1::Program& program = job->runner_->executor().program();
  if (program.world_size() == 1) return job;
  absl::StatusOr<std::unique_ptr<Communicator>> met =
      options.connect(program.rank(), program.world_size(), *timeouts, options.cancelled);
  if (!met.ok()) return met.status();
  absl::MutexLock lock(&job->mutex_);
  job->communicator_ = *std::move(met);
  job->runner_->executor().SetCommunicator(job->communicator_.get());
  return job;
}

int64_t ServingJob::measured_peak_bytes() const {
  return runner_->executor().measured_peak_bytes();
}

absl::Status ServingJob::Cancelled() {
  absl::MutexLock lock(&mutex_);
  return aborted_ ? absl::CancelledError(reason_) : absl::OkStatus();
}

absl::Status ServingJob::Step(const RunnerBatch& batch, RunnerOutput* logits) {
  return device_thread_->Run([&] {
    const absl::Status cancelled = Cancelled();
    return cancelled.ok() ? runner_->StepChecked(batch, logits) : cancelled;
  });
}

void ServingJob::Abort(const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  if (!aborted_) reason_ = reason;
  aborted_ = true;
  if (communicator_ != nullptr) communicator_->Abort(reason);
}

std::unique_ptr<Communicator> ServingJob::TakeCommunicator() {
  runner_->executor().SetCommunicator(nullptr);
  absl::MutexLock lock(&mutex_);
  return std::move(communicator_);
}

}  // namespace espalier
