#include "worker/worker_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/grpc_status.h"
#include "worker/keyed_channel.h"
#include "worker/measure.h"

namespace espalier {
namespace {

// The coordinator may call before the reply to Join has been looked at.
constexpr absl::Duration kJoinGrace = absl::Seconds(2);
constexpr absl::Duration kStopTimeout = absl::Seconds(30);
constexpr absl::Duration kMeasureTimeout = absl::Seconds(60);
constexpr size_t kMaxStoppedJobs = 4096;
constexpr int kMaxRepetitions = 1000;

}  // namespace

WorkerService::~WorkerService() { AbortAll("the worker is shutting down"); }

void WorkerService::SetEpoch(uint64_t epoch) {
  absl::MutexLock lock(&mutex_);
  epoch_ = epoch;
  changed_.SignalAll();
}

bool WorkerService::WaitIdle(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (state_ != State::kIdle) {
    if (changed_.WaitWithDeadline(&mutex_, deadline)) return state_ == State::kIdle;
  }
  return true;
}

void WorkerService::AbortCurrent(const std::string& reason) {
  abort_load_ = true;
  if (job_ != nullptr) job_->Abort(reason);
}

void WorkerService::Unload() {
  if (job_ != nullptr) {
    std::unique_ptr<Communicator> communicator = job_->TakeCommunicator();
    if (communicator != nullptr) lingering_ = std::move(communicator);
  }
  job_.reset();
  finished_ = false;
  current_.Clear();
}

void WorkerService::AbortAll(const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  AbortCurrent(reason);
  while (!WaitIdle(absl::Seconds(1))) AbortCurrent(reason);
  job_.reset();
  lingering_.reset();
  finished_ = false;
  current_.Clear();
}

std::vector<std::string> WorkerService::running_jobs() const {
  absl::MutexLock lock(&mutex_);
  if (current_.job_id().empty() || finished_) return {};
  return {current_.job_id()};
}

bool WorkerService::TakeLink(proto::Link* link) {
  absl::MutexLock lock(&mutex_);
  if (!has_link_) return false;
  *link = link_;
  has_link_ = false;
  return true;
}

absl::Status WorkerService::CheckAttempt(const proto::Attempt& attempt) {
  if (attempt.job_id().empty()) return absl::InvalidArgumentError("attempt.job_id is empty");
  const absl::Time deadline = absl::Now() + kJoinGrace;
  while (attempt.worker_epoch() > epoch_) {
    if (changed_.WaitWithDeadline(&mutex_, deadline)) break;
  }
  if (attempt.worker_epoch() != epoch_) {
    return absl::FailedPreconditionError(absl::StrCat("stale lease: the call carries worker epoch ",
                                                      attempt.worker_epoch(), ", this worker's is ",
                                                      epoch_));
  }
  auto stopped = stopped_.find(attempt.job_id());
  if (stopped != stopped_.end() && attempt.attempt() <= stopped->second) {
    return absl::FailedPreconditionError(
        absl::StrCat("attempt ", attempt.attempt(), " of job ", attempt.job_id(), " was stopped"));
  }
  if (attempt.job_id() == current_.job_id() && attempt.attempt() < current_.attempt()) {
    return absl::FailedPreconditionError(
        absl::StrCat("attempt ", attempt.attempt(), " of job ", attempt.job_id(),
                     " is stale; this worker has attempt ", current_.attempt()));
  }
  return absl::OkStatus();
}

absl::Status WorkerService::Load(const proto::LoadProgramRequest& request,
                                 proto::LoadProgramReply* reply) {
  const proto::Attempt& attempt = request.attempt();
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status s = CheckAttempt(attempt); !s.ok()) return s;
    if (state_ == State::kRunning || state_ == State::kLoading) {
      const bool newer =
          current_.job_id() == attempt.job_id() && current_.attempt() < attempt.attempt();
      if (!newer) {
        return absl::FailedPreconditionError(absl::StrCat("this worker is busy with attempt ",
                                                          current_.attempt(), " of job ",
                                                          current_.job_id(), "; stop it first"));
      }
      AbortCurrent(absl::StrCat("attempt ", attempt.attempt(), " has begun"));
    }
    if (!WaitIdle(kMeasureTimeout)) {
      return absl::UnavailableError("the worker's device does not become free; try again");
    }
    // What waited here meanwhile may have been overtaken.
    if (absl::Status s = CheckAttempt(attempt); !s.ok()) return s;
    Unload();
    state_ = State::kLoading;
    current_ = attempt;
    abort_load_ = false;
  }
  TrainingJobOptions options;
  options.device = options_.device;
  options.files = options_.files;
  options.open_dataset = options_.open_dataset;
  options.connect = [this, attempt](int rank, int size, absl::Duration timeout,
                                    std::function<bool()> cancelled) {
    return options_.connect(attempt, rank, size, timeout, std::move(cancelled));
  };
  absl::StatusOr<std::unique_ptr<TrainingJob>> job = TrainingJob::Load(request, options);
  absl::MutexLock lock(&mutex_);
  state_ = State::kIdle;
  changed_.SignalAll();
  absl::Status status = job.status();
  if (status.ok() && abort_load_) status = absl::CancelledError("stopped while loading");
  if (!status.ok()) {
    current_.Clear();
    return status;
  }
  job_ = *std::move(job);
  reply->set_peak_bytes(job_->measured_peak_bytes());
  reply->set_examples(job_->training_examples());
  return absl::OkStatus();
}

absl::Status WorkerService::RunLoaded(
    const proto::RunRequest& request,
    const std::function<absl::Status(const proto::RunEvent&)>& emit) {
  std::shared_ptr<TrainingJob> job;
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status s = CheckAttempt(request.attempt()); !s.ok()) return s;
    if (job_ == nullptr || current_.job_id() != request.attempt().job_id() ||
        current_.attempt() != request.attempt().attempt()) {
      return absl::FailedPreconditionError(absl::StrCat("attempt ", request.attempt().attempt(),
                                                        " of job ", request.attempt().job_id(),
                                                        " is not loaded; call LoadProgram first"));
    }
    if (state_ != State::kIdle) {
      return absl::FailedPreconditionError(absl::StrCat("attempt ", current_.attempt(), " of job ",
                                                        current_.job_id(), " is running already"));
    }
    state_ = State::kRunning;
    finished_ = false;
    job = job_;
  }
  absl::Status status = job->Run(request, emit);
  absl::MutexLock lock(&mutex_);
  if (job->has_link()) {
    has_link_ = true;
    link_ = job->link();
  }
  state_ = State::kIdle;
  finished_ = true;
  if (!status.ok()) {
    // A failed attempt cannot go on: let its peers see the connections close.
    job.reset();
    job_.reset();
    current_.Clear();
  }
  changed_.SignalAll();
  return status;
}

absl::Status WorkerService::Authorize(const grpc::ServerContext& context) const {
  return options_.authorize ? options_.authorize(AuthorizationOf(context)) : absl::OkStatus();
}

grpc::Status WorkerService::LoadProgram(grpc::ServerContext* context,
                                        const proto::LoadProgramRequest* request,
                                        proto::LoadProgramReply* reply) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  return ToGrpc(Load(*request, reply));
}

grpc::Status WorkerService::Run(grpc::ServerContext* context, const proto::RunRequest* request,
                                grpc::ServerWriter<proto::RunEvent>* writer) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  return ToGrpc(RunLoaded(*request, [&](const proto::RunEvent& event) -> absl::Status {
    proto::RunEvent stamped = event;
    *stamped.mutable_attempt() = request->attempt();
    if (context->IsCancelled() || !writer->Write(stamped)) {
      return absl::CancelledError("nobody listens to this run any more");
    }
    return absl::OkStatus();
  }));
}

grpc::Status WorkerService::Stop(grpc::ServerContext* context, const proto::StopRequest* request,
                                 proto::StopReply*) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  // No check of the lease: ending work does no harm, and a coordinator that has lost track must be
  // able to. Attempts are checked, so that a late call cannot end a newer one.
  const proto::Attempt& attempt = request->attempt();
  absl::MutexLock lock(&mutex_);
  if (attempt.job_id() == current_.job_id() && attempt.attempt() < current_.attempt()) {
    return ToGrpc(absl::FailedPreconditionError(
        absl::StrCat("attempt ", attempt.attempt(), " of job ", attempt.job_id(),
                     " is stale; this worker has attempt ", current_.attempt())));
  }
  if (stopped_.size() >= kMaxStoppedJobs) stopped_.erase(stopped_.begin());
  uint64_t& stopped = stopped_[attempt.job_id()];
  stopped = std::max(stopped, attempt.attempt());
  if (attempt.job_id().empty() || attempt.job_id() != current_.job_id()) return grpc::Status::OK;
  AbortCurrent(
      absl::StrCat("attempt ", attempt.attempt(), " of job ", attempt.job_id(), " was stopped"));
  if (!WaitIdle(kStopTimeout)) {
    return ToGrpc(absl::DeadlineExceededError("the attempt has not ended yet; it will"));
  }
  if (attempt.job_id() == current_.job_id() && attempt.attempt() >= current_.attempt()) Unload();
  return grpc::Status::OK;
}

grpc::Status WorkerService::Measure(grpc::ServerContext* context,
                                    const proto::MeasureRequest* request,
                                    proto::MeasureReply* reply) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  if (request->repetitions() < 0 || request->repetitions() > kMaxRepetitions) {
    return ToGrpc(absl::InvalidArgumentError(absl::StrCat(
        "repetitions is ", request->repetitions(), "; accepted: 0 (5) to ", kMaxRepetitions)));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (state_ == State::kRunning || state_ == State::kLoading ||
        (!current_.job_id().empty() && !finished_)) {
      return ToGrpc(absl::FailedPreconditionError(
          absl::StrCat("this worker is busy with job ", current_.job_id())));
    }
    if (!WaitIdle(kMeasureTimeout)) {
      return ToGrpc(absl::UnavailableError("the worker's device does not become free; try again"));
    }
    Unload();
    state_ = State::kMeasuring;
  }
  for (const proto::Program& program : request->programs()) {
    if (context->IsCancelled()) break;
    const int repetitions = request->repetitions() == 0 ? 5 : request->repetitions();
    absl::StatusOr<double> seconds = MeasureProgram(program, repetitions, options_.device);
    reply->add_seconds(seconds.ok() ? *seconds : -1);
  }
  absl::MutexLock lock(&mutex_);
  state_ = State::kIdle;
  changed_.SignalAll();
  return grpc::Status::OK;
}

}  // namespace espalier
