#include "worker/worker_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/grpc_status.h"
#include "worker/keyed_channel.h"
#include "worker/measure.h"
#include "worker/runner/serving_wire.h"

namespace espalier {
namespace {

// The coordinator may call before the reply to Join has been looked at.
constexpr absl::Duration kJoinGrace = absl::Seconds(2);
constexpr absl::Duration kStopTimeout = absl::Seconds(30);
constexpr absl::Duration kMeasureTimeout = absl::Seconds(60);
constexpr size_t kMaxStoppedJobs = 4096;
constexpr int kMaxRepetitions = 1000;
constexpr size_t kNumbersPerMessage = 1 << 20;  // 4 MiB

using StepStream = grpc::ServerReaderWriter<proto::ServingResult, proto::ServingStep>;

// What one step gave, in as many messages as it needs; at least one.
bool SendResult(uint64_t number, const RunnerLogits& logits, StepStream* stream) {
  size_t sent = 0, sent_hidden = 0;
  proto::ServingResult result;
  do {
    result.Clear();
    result.set_number(number);
    size_t room = kNumbersPerMessage;
    const auto take = [&room](const std::vector<float>& from, size_t* taken) {
      const size_t count = std::min(room, from.size() - *taken);
      const char* const begin = reinterpret_cast<const char*>(from.data() + *taken);
      room -= count;
      *taken += count;
      return absl::string_view(begin, count * sizeof(float));
    };
    const absl::string_view values = take(logits.values, &sent);
    result.set_logits(values.data(), values.size());
    const absl::string_view hidden = take(logits.hidden, &sent_hidden);
    result.set_hidden(hidden.data(), hidden.size());
    result.set_more(sent < logits.values.size() || sent_hidden < logits.hidden.size());
    if (!stream->Write(result)) return false;
  } while (result.more());
  return true;
}

// Until the stream ends (OK) or a step fails.
absl::Status ServeSteps(ServingJob& job, StepStream* stream) {
  proto::ServingResult ready;
  if (!stream->Write(ready)) return absl::OkStatus();
  proto::ServingStep step;
  RunnerBatch batch;
  RunnerLogits logits;
  uint64_t number = 0;
  while (stream->Read(&step)) {
    if (step.number() != ++number) {
      return absl::InvalidArgumentError(
          absl::StrCat("step ", step.number(), " came where step ", number, " was expected"));
    }
    TakeBatch(step, &batch);
    const absl::Status refused = job.Check(batch);
    if (refused.ok()) {
      if (absl::Status s = job.Step(batch, &logits); !s.ok()) return s;
    }
    if (!job.has_logits()) continue;
    if (refused.ok()) {
      if (!SendResult(number, logits, stream)) return absl::OkStatus();
      continue;
    }
    proto::ServingResult result;
    result.set_number(number);
    result.set_refused(std::string(refused.message()));
    if (!stream->Write(result)) return absl::OkStatus();
  }
  return absl::OkStatus();
}

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
  if (serving_ != nullptr) serving_->Abort(reason);
  if (steps_ != nullptr) steps_->TryCancel();
}

void WorkerService::Unload() {
  for (WorkerJob* job :
       {static_cast<WorkerJob*>(job_.get()), static_cast<WorkerJob*>(serving_.get())}) {
    if (job == nullptr) continue;
    std::unique_ptr<Communicator> communicator = job->TakeCommunicator();
    if (communicator != nullptr) lingering_ = std::move(communicator);
  }
  job_.reset();
  serving_.reset();
  finished_ = false;
  current_.Clear();
}

void WorkerService::AbortAll(const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  AbortCurrent(reason);
  while (!WaitIdle(absl::Seconds(1))) AbortCurrent(reason);
  job_.reset();
  serving_.reset();
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

absl::Status WorkerService::BeginLoad(const proto::Attempt& attempt) {
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
  return absl::OkStatus();
}

absl::Status WorkerService::EndLoad(const absl::Status& loaded) {
  state_ = State::kIdle;
  changed_.SignalAll();
  absl::Status status = loaded;
  if (status.ok() && abort_load_) status = absl::CancelledError("stopped while loading");
  if (!status.ok()) current_.Clear();
  return status;
}

absl::Status WorkerService::CheckLoaded(const proto::Attempt& attempt, const WorkerJob* job,
                                        const char* call) {
  if (absl::Status s = CheckAttempt(attempt); !s.ok()) return s;
  if (job == nullptr || current_.job_id() != attempt.job_id() ||
      current_.attempt() != attempt.attempt()) {
    return absl::FailedPreconditionError(absl::StrCat("attempt ", attempt.attempt(), " of job ",
                                                      attempt.job_id(), " is not loaded; call ",
                                                      call, " first"));
  }
  if (state_ != State::kIdle) {
    return absl::FailedPreconditionError(absl::StrCat("attempt ", current_.attempt(), " of job ",
                                                      current_.job_id(), " is running already"));
  }
  return absl::OkStatus();
}

absl::Status WorkerService::Load(const proto::LoadProgramRequest& request,
                                 proto::LoadProgramReply* reply) {
  if (absl::Status s = BeginLoad(request.attempt()); !s.ok()) return s;
  TrainingJobOptions options;
  options.device = options_.device;
  options.files = options_.files;
  options.open_dataset = options_.open_dataset;
  options.connect = ConnectOf(request.attempt());
  absl::StatusOr<std::unique_ptr<TrainingJob>> job = TrainingJob::Load(request, options);
  absl::MutexLock lock(&mutex_);
  if (absl::Status s = EndLoad(job.status()); !s.ok()) return s;
  job_ = *std::move(job);
  reply->set_peak_bytes(job_->measured_peak_bytes());
  reply->set_examples(job_->training_examples());
  return absl::OkStatus();
}

absl::Status WorkerService::LoadServing(const proto::StartServingRequest& request,
                                        proto::StartServingReply* reply) {
  if (absl::Status s = BeginLoad(request.attempt()); !s.ok()) return s;
  ServingJobOptions options;
  options.device = options_.device;
  options.connect = ConnectOf(request.attempt());
  options.cancelled = [this] {
    absl::MutexLock lock(&mutex_);
    return abort_load_;
  };
  absl::StatusOr<std::unique_ptr<ServingJob>> job = ServingJob::Load(request, options);
  absl::MutexLock lock(&mutex_);
  if (absl::Status s = EndLoad(job.status()); !s.ok()) return s;
  serving_ = *std::move(job);
  reply->set_peak_bytes(serving_->measured_peak_bytes());
  return absl::OkStatus();
}

absl::Status WorkerService::RunLoaded(
    const proto::RunRequest& request,
    const std::function<absl::Status(const proto::RunEvent&)>& emit) {
  std::shared_ptr<TrainingJob> job;
  {
    absl::MutexLock lock(&mutex_);
    absl::Status s = CheckLoaded(request.attempt(), job_.get(), "LoadProgram");
    if (!s.ok()) return s;
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

absl::Status WorkerService::RunSteps(grpc::ServerContext* context, StepStream* stream) {
  proto::ServingStep message;
  if (!stream->Read(&message)) return absl::CancelledError("the stream ended before it began");
  std::shared_ptr<ServingJob> job;
  {
    absl::MutexLock lock(&mutex_);
    absl::Status s = CheckLoaded(message.attempt(), serving_.get(), "StartServing");
    if (!s.ok()) return s;
    state_ = State::kRunning;
    finished_ = false;
    steps_ = context;
    job = serving_;
  }
  const absl::Status status = ServeSteps(*job, stream);
  // Nobody will ask for a step any more: peers see the connections close, and the memory is free.
  job->Abort("the stream of steps has ended");
  absl::MutexLock lock(&mutex_);
  steps_ = nullptr;
  job.reset();
  serving_.reset();
  current_.Clear();
  state_ = State::kIdle;
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

grpc::Status WorkerService::StartServing(grpc::ServerContext* context,
                                         const proto::StartServingRequest* request,
                                         proto::StartServingReply* reply) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  return ToGrpc(LoadServing(*request, reply));
}

grpc::Status WorkerService::ServingSteps(grpc::ServerContext* context, StepStream* stream) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  return ToGrpc(RunSteps(context, stream));
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
