#include "worker/worker_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/machine_memory.h"
#include "base/net/authenticated_channel.h"
#include "base/net/grpc_status.h"
#include "base/version.h"
#include "storage/object_reader.h"
#include "worker/measure.h"
#include "worker/serve_steps.h"

namespace espalier {
namespace {

// The coordinator may call before this worker has processed the reply to Join.
constexpr absl::Duration kJoinGrace = absl::Seconds(2);
constexpr absl::Duration kStopTimeout = absl::Seconds(30);
constexpr absl::Duration kMeasureTimeout = absl::Seconds(60);
constexpr size_t kMaxStoppedJobs = 4096;
constexpr int kMaxRepetitions = 1000;

absl::Status CheckNotStale(const v1::Attempt& attempt, uint64_t present) {
  if (attempt.attempt() >= present) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("attempt ", attempt.attempt(), " of job ", attempt.job_id(),
                   " is stale; this worker has attempt ", present));
}

// Checks a name in a store, unless it is empty.
absl::Status CheckName(const char* field, const std::string& name) {
  const absl::Status status = name.empty() ? absl::OkStatus() : CheckObjectName(name);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(field, ": ", std::string(status.message())));
}

}  // namespace

WorkerService::~WorkerService() { AbortAll("the worker is shutting down"); }

void WorkerService::SetJoinKey(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  join_key_ = key;
}

void WorkerService::SetEpoch(uint64_t epoch) {
  absl::MutexLock lock(&mutex_);
  epoch_ = epoch;
  changed_.SignalAll();
}

WorkerService::LoadedJob* WorkerService::Find(const std::string& job_id) {
  const auto found = loaded_jobs_.find(job_id);
  return found == loaded_jobs_.end() ? nullptr : &found->second;
}

bool WorkerService::Idle(const std::string& job_id) {
  const LoadedJob* loaded = Find(job_id);
  return !measuring_ && freeing_ == 0 && (loaded == nullptr || loaded->state == State::kIdle);
}

bool WorkerService::WaitIdle(const std::string& job_id, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!Idle(job_id)) {
    if (changed_.WaitWithDeadline(&mutex_, deadline)) return Idle(job_id);
  }
  return true;
}

void WorkerService::Abort(LoadedJob& loaded, const std::string& reason) {
  loaded.abort_load = true;
  if (loaded.training != nullptr) loaded.training->Abort(reason);
  if (loaded.session != nullptr) loaded.session->Abort(reason);
  if (loaded.serving != nullptr) loaded.serving->Abort(reason);
  if (loaded.steps != nullptr) loaded.steps->TryCancel();
}

std::vector<WorkerService::LoadedJob> WorkerService::Unload(
    const std::vector<std::string>& job_ids) {
  std::vector<LoadedJob> unloaded;
  for (const std::string& job_id : job_ids) {
    const auto found = loaded_jobs_.find(job_id);
    if (found == loaded_jobs_.end()) continue;
    const LoadedJob& loaded = found->second;
    for (WorkerJob* job : {static_cast<WorkerJob*>(loaded.training.get()),
                           static_cast<WorkerJob*>(loaded.session.get()),
                           static_cast<WorkerJob*>(loaded.serving.get())}) {
      if (job == nullptr) continue;
      std::unique_ptr<Communicator> communicator = job->TakeCommunicator();
      if (communicator != nullptr) draining_communicator_ = std::move(communicator);
    }
    unloaded.push_back(std::move(found->second));
    loaded_jobs_.erase(found);
  }
  return unloaded;
}

template <typename T>
void WorkerService::Free(T memory) {
  ++freeing_;
  mutex_.Unlock();
  { const T freed = std::move(memory); }
  ReturnFreeMemory();
  mutex_.Lock();
  --freeing_;
  changed_.SignalAll();
}

void WorkerService::AbortAll(const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  while (true) {
    bool idle = !measuring_ && freeing_ == 0;
    for (auto& [job_id, loaded] : loaded_jobs_) {
      Abort(loaded, reason);
      idle = idle && loaded.state == State::kIdle;
    }
    if (idle) break;
    changed_.WaitWithTimeout(&mutex_, absl::Seconds(1));
  }
  loaded_jobs_.clear();
  draining_communicator_.reset();
  // These belong to old leases; the coordinator may count attempts from the start under a new one.
  stopped_.clear();
}

std::vector<std::string> WorkerService::running_jobs() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> jobs;
  for (const auto& [job_id, loaded] : loaded_jobs_) {
    if (!loaded.finished) jobs.push_back(job_id);
  }
  return jobs;
}

bool WorkerService::TakeLink(v1::Link* link) {
  absl::MutexLock lock(&mutex_);
  if (!has_link_) return false;
  *link = link_;
  has_link_ = false;
  return true;
}

absl::Status WorkerService::CheckAttempt(const v1::Attempt& attempt) {
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
  const LoadedJob* loaded = Find(attempt.job_id());
  return loaded == nullptr ? absl::OkStatus() : CheckNotStale(attempt, loaded->attempt);
}

absl::Status WorkerService::CheckFree(const v1::Attempt& attempt, Kind kind) {
  const bool serves = kind == Kind::kServing;
  for (auto& [job_id, loaded] : loaded_jobs_) {
    const bool older = job_id == attempt.job_id() && loaded.attempt < attempt.attempt();
    if (loaded.state == State::kIdle || older) continue;
    if (serves && loaded.kind == kind && job_id != attempt.job_id()) continue;
    return absl::FailedPreconditionError(absl::StrCat("this worker is busy with attempt ",
                                                      loaded.attempt, " of job ", job_id,
                                                      "; stop it first"));
  }
  LoadedJob* const before = Find(attempt.job_id());
  if (before != nullptr && before->state != State::kIdle) {
    Abort(*before, absl::StrCat("attempt ", attempt.attempt(), " has begun"));
  }
  return absl::OkStatus();
}

absl::Status WorkerService::BeginLoad(const v1::Attempt& attempt, Kind kind) {
  absl::MutexLock lock(&mutex_);
  while (true) {
    // Checked again after each wait, during which a newer attempt may have arrived.
    if (absl::Status s = CheckAttempt(attempt); !s.ok()) return s;
    if (absl::Status s = CheckFree(attempt, kind); !s.ok()) return s;
    if (Idle(attempt.job_id())) break;
    if (!WaitIdle(attempt.job_id(), kMeasureTimeout)) {
      return absl::UnavailableError("the worker's device does not become free; try again");
    }
  }
  std::vector<std::string> in_the_way;
  for (const auto& [job_id, loaded] : loaded_jobs_) {
    const bool shares = kind == Kind::kServing && loaded.kind == kind;
    if (!shares || job_id == attempt.job_id()) in_the_way.push_back(job_id);
  }
  std::vector<LoadedJob> unloaded = Unload(in_the_way);
  LoadedJob& loaded = loaded_jobs_[attempt.job_id()];
  loaded.attempt = attempt.attempt();
  loaded.kind = kind;
  Free(std::move(unloaded));
  return absl::OkStatus();
}

template <typename Job>
absl::StatusOr<WorkerService::LoadedJob*> WorkerService::EndLoad(
    const v1::Attempt& attempt, absl::StatusOr<std::unique_ptr<Job>>* job) {
  LoadedJob* const loaded = Find(attempt.job_id());
  if (job->ok() && loaded->abort_load) {
    std::unique_ptr<Job> unwanted = *std::move(*job);
    *job = absl::CancelledError("stopped while loading");
    Free(std::move(unwanted));
  }
  loaded->state = State::kIdle;
  changed_.SignalAll();
  if (job->ok()) return loaded;
  loaded_jobs_.erase(attempt.job_id());
  return job->status();
}

absl::StatusOr<WorkerService::LoadedJob*> WorkerService::BeginRun(const v1::Attempt& attempt,
                                                                  Kind kind) {
  if (absl::Status s = CheckAttempt(attempt); !s.ok()) return s;
  LoadedJob* const loaded = Find(attempt.job_id());
  if (loaded == nullptr || loaded->kind != kind || loaded->attempt != attempt.attempt() ||
      loaded->state == State::kLoading) {
    return absl::FailedPreconditionError(absl::StrCat(
        "attempt ", attempt.attempt(), " of job ", attempt.job_id(), " is not loaded; call ",
        kind == Kind::kServing ? "StartServing" : "LoadProgram", " first"));
  }
  if (loaded->state != State::kIdle) {
    return absl::FailedPreconditionError(absl::StrCat("attempt ", attempt.attempt(), " of job ",
                                                      attempt.job_id(), " is running already"));
  }
  loaded->state = State::kRunning;
  loaded->finished = false;
  return loaded;
}

absl::Status WorkerService::Load(const v1::LoadProgramRequest& request,
                                 v1::LoadProgramReply* reply) {
  absl::Status named = CheckName("checkpoint_dir", request.checkpoint_dir());
  if (named.ok()) named = CheckName("init_folder", request.init_folder());
  if (named.ok()) named = CheckName("values_folder", request.values_folder());
  if (!named.ok()) return named;
  if (request.has_session()) return LoadSession(request, reply);
  if (absl::Status s = BeginLoad(request.attempt(), Kind::kTraining); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<TrainingJob>> job = TrainingJob::Load(request, OptionsOf(request));
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<LoadedJob*> loaded = EndLoad(request.attempt(), &job);
  if (!loaded.ok()) return loaded.status();
  (*loaded)->training = *std::move(job);
  reply->set_peak_bytes((*loaded)->training->measured_peak_bytes());
  reply->set_examples((*loaded)->training->training_examples());
  *reply->mutable_shards_read() = (*loaded)->training->shards_read();
  reply->set_program_version(kEspalierVersion);
  reply->set_instruction_set(options_.device->instruction_set());
  reply->set_threads(options_.device->description().threads());
  return absl::OkStatus();
}

TrainingJobOptions WorkerService::OptionsOf(const v1::LoadProgramRequest& request) {
  const v1::Attempt& attempt = request.attempt();
  ShardPlaces places;
  if (request.has_keep_shards_on()) places.keep_on = request.keep_shards_on();
  places.peers.assign(request.shard_peers().begin(), request.shard_peers().end());
  TrainingJobOptions options;
  options.device = options_.device;
  options.storage = options_.storage(attempt, places);
  options.open_dataset = options_.open_dataset;
  options.connect = ConnectOf(attempt);
  options.cancelled = IsAborted(attempt.job_id());
  return options;
}

absl::Status WorkerService::LoadSession(const v1::LoadProgramRequest& request,
                                        v1::LoadProgramReply* reply) {
  if (absl::Status s = BeginLoad(request.attempt(), Kind::kSession); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<SessionJob>> job = SessionJob::Load(request, OptionsOf(request));
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<LoadedJob*> loaded = EndLoad(request.attempt(), &job);
  if (!loaded.ok()) return loaded.status();
  (*loaded)->session = *std::move(job);
  reply->set_peak_bytes((*loaded)->session->measured_peak_bytes());
  (*loaded)->session->ListTensors(reply);
  return absl::OkStatus();
}

absl::Status WorkerService::RunCommands(grpc::ServerContext* context, SessionStream* stream) {
  v1::RankCommand message;
  if (!stream->Read(&message)) return absl::CancelledError("the stream ended before it began");
  const std::string job_id = message.attempt().job_id();
  std::shared_ptr<SessionJob> job;
  {
    absl::MutexLock lock(&mutex_);
    const absl::StatusOr<LoadedJob*> loaded = BeginRun(message.attempt(), Kind::kSession);
    if (!loaded.ok()) return loaded.status();
    (*loaded)->steps = context;
    job = (*loaded)->session;
  }
  const absl::Status status = ServeSession(*job, stream);
  job->Abort("the session has ended");
  absl::MutexLock lock(&mutex_);
  // Peers may still be reading this rank's last messages.
  if (std::unique_ptr<Communicator> communicator = job->TakeCommunicator()) {
    draining_communicator_ = std::move(communicator);
  }
  loaded_jobs_.erase(job_id);
  Free(std::move(job));
  return status;
}

absl::Status WorkerService::LoadServing(const v1::StartServingRequest& request,
                                        v1::StartServingReply* reply) {
  absl::Status named = CheckName("folder", request.folder());
  for (const std::string& folder : request.adapter_folders()) {
    if (named.ok()) named = CheckName("adapter_folders", folder);
  }
  if (!named.ok()) return named;
  if (absl::Status s = BeginLoad(request.attempt(), Kind::kServing); !s.ok()) return s;
  ServingJobOptions options;
  options.device = options_.device;
  options.device_thread = &device_thread_;
  options.storage = options_.storage(request.attempt(), {});
  options.connect = ConnectOf(request.attempt());
  options.cancelled = IsAborted(request.attempt().job_id());
  absl::StatusOr<std::unique_ptr<ServingJob>> job = ServingJob::Load(request, options);
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<LoadedJob*> loaded = EndLoad(request.attempt(), &job);
  if (!loaded.ok()) return loaded.status();
  (*loaded)->serving = *std::move(job);
  reply->set_peak_bytes((*loaded)->serving->measured_peak_bytes());
  return absl::OkStatus();
}

absl::Status WorkerService::RunLoaded(
    const v1::RunRequest& request, const std::function<absl::Status(const v1::RunEvent&)>& emit) {
  absl::Status named = CheckName("checkpoint_root", request.checkpoint_root());
  if (named.ok()) named = CheckName("restore_checkpoint", request.restore_checkpoint());
  for (const v1::StreamPart& part : request.stream()) {
    if (named.ok()) named = CheckName("stream.path", part.path());
  }
  if (!named.ok()) return named;
  std::shared_ptr<TrainingJob> job;
  {
    absl::MutexLock lock(&mutex_);
    const absl::StatusOr<LoadedJob*> loaded = BeginRun(request.attempt(), Kind::kTraining);
    if (!loaded.ok()) return loaded.status();
    job = (*loaded)->training;
  }
  absl::Status status = job->Run(request, emit);
  absl::MutexLock lock(&mutex_);
  if (job->has_link()) {
    has_link_ = true;
    link_ = job->link();
  }
  LoadedJob* const loaded = Find(request.attempt().job_id());
  if (status.ok()) {
    loaded->state = State::kIdle;
    loaded->finished = true;
    changed_.SignalAll();
    return status;
  }
  // A failed attempt cannot continue: closing its connections tells its peers.
  loaded->training.reset();
  loaded_jobs_.erase(request.attempt().job_id());
  Free(std::move(job));
  return status;
}

absl::Status WorkerService::RunSteps(grpc::ServerContext* context, StepStream* stream) {
  v1::ServingStep message;
  if (!stream->Read(&message)) return absl::CancelledError("the stream ended before it began");
  const std::string job_id = message.attempt().job_id();
  std::shared_ptr<ServingJob> job;
  {
    absl::MutexLock lock(&mutex_);
    const absl::StatusOr<LoadedJob*> loaded = BeginRun(message.attempt(), Kind::kServing);
    if (!loaded.ok()) return loaded.status();
    (*loaded)->steps = context;
    job = (*loaded)->serving;
  }
  const absl::Status status = ServeSteps(*job, stream);
  // No more steps will follow: closes connections and frees the memory.
  job->Abort("the stream of steps has ended");
  {
    absl::MutexLock lock(&mutex_);
    Find(job_id)->serving.reset();
  }
  job.reset();  // without the lock, which heartbeats need: freeing takes a while
  ReturnFreeMemory();
  absl::MutexLock lock(&mutex_);
  loaded_jobs_.erase(job_id);
  changed_.SignalAll();
  return status;
}

absl::Status WorkerService::Authorize(const grpc::ServerContext& context) const {
  return options_.authorize ? options_.authorize(AuthorizationOf(context)) : absl::OkStatus();
}

grpc::Status WorkerService::LoadProgram(grpc::ServerContext* context,
                                        const v1::LoadProgramRequest* request,
                                        v1::LoadProgramReply* reply) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  return ToGrpc(Load(*request, reply));
}

grpc::Status WorkerService::Run(grpc::ServerContext* context, const v1::RunRequest* request,
                                grpc::ServerWriter<v1::RunEvent>* writer) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  return ToGrpc(RunLoaded(*request, [&](const v1::RunEvent& event) -> absl::Status {
    v1::RunEvent stamped = event;
    *stamped.mutable_attempt() = request->attempt();
    if (context->IsCancelled() || !writer->Write(stamped)) {
      return absl::CancelledError("the caller of this run is gone");
    }
    return absl::OkStatus();
  }));
}

grpc::Status WorkerService::StartServing(grpc::ServerContext* context,
                                         const v1::StartServingRequest* request,
                                         v1::StartServingReply* reply) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  return ToGrpc(LoadServing(*request, reply));
}

grpc::Status WorkerService::ServingSteps(grpc::ServerContext* context, StepStream* stream) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  return ToGrpc(RunSteps(context, stream));
}

grpc::Status WorkerService::RunSession(grpc::ServerContext* context, SessionStream* stream) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  return ToGrpc(RunCommands(context, stream));
}

grpc::Status WorkerService::CheckpointAt(grpc::ServerContext* context,
                                         const v1::CheckpointAtRequest* request,
                                         v1::CheckpointAtReply* reply) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  absl::MutexLock lock(&mutex_);
  if (absl::Status s = CheckAttempt(request->attempt()); !s.ok()) return ToGrpc(s);
  const LoadedJob* const loaded = Find(request->attempt().job_id());
  if (loaded == nullptr || loaded->attempt != request->attempt().attempt() ||
      loaded->training == nullptr) {
    return ToGrpc(absl::FailedPreconditionError(
        absl::StrCat("attempt ", request->attempt().attempt(), " of job ",
                     request->attempt().job_id(), " is not loaded here")));
  }
  reply->set_steps_done(loaded->training->CheckpointAt(request->steps_done()));
  return grpc::Status::OK;
}

grpc::Status WorkerService::Stop(grpc::ServerContext* context, const v1::StopRequest* request,
                                 v1::StopReply*) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  // Does not check the lease: stopping work is harmless, and a coordinator that lost track must be
  // able to. Checks the attempt, so that a late call cannot stop a newer one.
  const v1::Attempt& attempt = request->attempt();
  absl::MutexLock lock(&mutex_);
  const LoadedJob* const loaded = Find(attempt.job_id());
  if (loaded != nullptr) {
    if (absl::Status s = CheckNotStale(attempt, loaded->attempt); !s.ok()) return ToGrpc(s);
  }
  if (stopped_.size() >= kMaxStoppedJobs) stopped_.erase(stopped_.begin());
  uint64_t& stopped = stopped_[attempt.job_id()];
  stopped = std::max(stopped, attempt.attempt());
  if (loaded == nullptr) return grpc::Status::OK;
  Abort(*Find(attempt.job_id()),
        absl::StrCat("attempt ", attempt.attempt(), " of job ", attempt.job_id(), " was stopped"));
  if (!WaitIdle(attempt.job_id(), kStopTimeout)) {
    return ToGrpc(absl::DeadlineExceededError("the attempt has not ended yet; it will"));
  }
  const LoadedJob* const left = Find(attempt.job_id());
  if (left != nullptr && attempt.attempt() >= left->attempt) Free(Unload({attempt.job_id()}));
  return grpc::Status::OK;
}

grpc::Status WorkerService::Measure(grpc::ServerContext* context, const v1::MeasureRequest* request,
                                    v1::MeasureReply* reply) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  if (request->repetitions() < 0 || request->repetitions() > kMaxRepetitions) {
    return ToGrpc(absl::InvalidArgumentError(absl::StrCat(
        "repetitions is ", request->repetitions(), "; accepted: 0 (5) to ", kMaxRepetitions)));
  }
  {
    absl::MutexLock lock(&mutex_);
    const auto check_free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
      for (const auto& [job_id, loaded] : loaded_jobs_) {
        if (loaded.state == State::kIdle && loaded.finished) continue;
        return absl::FailedPreconditionError(absl::StrCat("this worker is busy with job ", job_id));
      }
      return absl::OkStatus();
    };
    if (absl::Status s = check_free(); !s.ok()) return ToGrpc(s);
    if (!WaitIdle("", kMeasureTimeout)) {
      return ToGrpc(absl::UnavailableError("the worker's device does not become free; try again"));
    }
    if (absl::Status s = check_free(); !s.ok()) return ToGrpc(s);
    measuring_ = true;
    std::vector<std::string> jobs;
    for (const auto& [job_id, loaded] : loaded_jobs_) jobs.push_back(job_id);
    Free(Unload(jobs));
  }
  for (const v1::Program& program : request->programs()) {
    if (context->IsCancelled()) break;
    const int repetitions = request->repetitions() == 0 ? 5 : request->repetitions();
    absl::StatusOr<double> seconds = MeasureProgram(program, repetitions, options_.device);
    reply->add_seconds(seconds.ok() ? *seconds : -1);
  }
  absl::MutexLock lock(&mutex_);
  measuring_ = false;
  changed_.SignalAll();
  return grpc::Status::OK;
}

}  // namespace espalier
