#include "server/distillation/distillation_runner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/states.h"
#include "server/distillation/check_distillation_spec.h"
#include "server/distillation/distillation_run.h"
#include "server/store/idempotency.h"

namespace espalier {
namespace {

constexpr char kRecords[] = "distillation";
// Records kept; beyond, the oldest finished ones are dropped.
constexpr int kMaxRecords = 1000;

// A job that is interrupted must not go on with models that have these names by then.
absl::Status PinModels(const ArtifactStore& artifacts, v1::DistillationSpec* spec) {
  std::vector<std::string*> models = {spec->mutable_llm()};
  for (v1::DistillationStart& start : *spec->mutable_ssms()) {
    if (start.has_artifact()) models.push_back(start.mutable_artifact());
  }
  for (std::string* model : models) {
    absl::StatusOr<std::string> pinned = artifacts.Pinned(*model);
    if (!pinned.ok()) return pinned.status();
    *model = *std::move(pinned);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DistillationNotFound(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("there is no boost-tuning '", id.substr(0, 100),
                                          "'; `espalier boost-tune --list` lists them"));
}

absl::Status DistillationRunner::Open() {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<std::string> blob = tools_.store->GetBlob(kRecords);
  if (!blob.ok() && !absl::IsNotFound(blob.status())) return blob.status();
  if (blob.ok() && !records_.ParseFromString(*blob)) {
    return absl::DataLossError("the records of boost-tunings do not parse");
  }
  return absl::OkStatus();
}

void DistillationRunner::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void DistillationRunner::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<v1::DistillationJob*> DistillationRunner::Find(const std::string& id) {
  for (v1::DistillationJob& job : *records_.mutable_jobs()) {
    if (job.id() == id) return &job;
  }
  return DistillationNotFound(id);
}

std::optional<std::string> DistillationRunner::OwnerOf(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<v1::DistillationJob*> job = Find(id);
  if (!job.ok()) return std::nullopt;
  return (*job)->owner();
}

std::optional<std::string> DistillationRunner::OwnerOfOutput(const std::string& artifact) {
  absl::MutexLock lock(&mutex_);
  for (const v1::DistillationJob& job : records_.jobs()) {
    if (IsOver(job.state())) continue;
    for (const v1::DistilledSsm& ssm : job.ssms()) {
      if (ssm.output() == artifact) return job.owner();
    }
  }
  return std::nullopt;
}

std::vector<ArtifactUse> DistillationRunner::ArtifactsInUse() {
  std::vector<ArtifactUse> uses;
  absl::MutexLock lock(&mutex_);
  for (const v1::DistillationJob& job : records_.jobs()) {
    if (IsOver(job.state())) continue;
    const auto add = [&](const std::string& artifact) {
      if (artifact.empty()) return;
      uses.push_back(
          {artifact, absl::StrCat(job.id(), ", which is not over"),
           absl::StrCat("wait for it, or cancel it: espalier boost-tune --cancel=", job.id())});
    };
    add(job.spec().llm());
    add(job.spec().prompts());
    for (const v1::DistillationStart& start : job.spec().ssms()) add(start.artifact());
  }
  return uses;
}

absl::Status DistillationRunner::CheckSoleWriter(const std::string& name) const {
  for (const v1::DistillationJob& job : records_.jobs()) {
    if (IsOver(job.state()) || job.spec().name() != name) continue;
    return absl::AlreadyExistsError(
        absl::StrCat("field 'name': ", job.id(), " is ", StateName(job.state()),
                     " and writes the same models; choose another name, or cancel it"));
  }
  return absl::OkStatus();
}

absl::Status DistillationRunner::Write(const v1::DistillationJob& job) {
  v1::DistillationRecords next = records_;
  auto* jobs = next.mutable_jobs();
  const auto same = std::find_if(jobs->begin(), jobs->end(), [&](const v1::DistillationJob& other) {
    return other.id() == job.id();
  });
  if (same != jobs->end()) {
    *same = job;
  } else {
    *next.add_jobs() = job;
    next.set_next_number(next.next_number() + 1);
  }
  const auto over = std::find_if(jobs->begin(), jobs->end(), [](const v1::DistillationJob& other) {
    return IsOver(other.state());
  });
  if (jobs->size() > kMaxRecords && over != jobs->end()) {
    jobs->DeleteSubrange(static_cast<int>(over - jobs->begin()), 1);
  }
  absl::Status status = tools_.store->PutBlob(kRecords, next.SerializeAsString());
  if (status.ok()) records_ = std::move(next);
  return status;
}

absl::Status DistillationRunner::Submit(const v1::SubmitDistillationRequest& request,
                                        const std::string& owner, v1::DistillationReply* reply) {
  const std::string& key = request.idempotency_key();
  if (absl::Status status = CheckIdempotencyKey(key); !status.ok()) return status;
  const std::string sum = RequestSha256(request);
  absl::StatusOr<CheckedDistillation> checked = CheckDistillationSpec(tools_, request.spec());
  absl::MutexLock lock(&mutex_);
  // A repetition of a call is answered, whatever has become of the artifacts since.
  for (const v1::DistillationJob& job : records_.jobs()) {
    if (key.empty() || job.idempotency_key() != key || job.owner() != owner) continue;
    // Records of earlier versions have no hash.
    if (!job.request_sha256().empty() && job.request_sha256() != sum) {
      return absl::InvalidArgumentError(
          absl::StrCat("idempotency_key '", key, "' was used before for ", job.id(),
                       " with another request; use a new key for a new request"));
    }
    *reply->mutable_job() = job;
    return absl::OkStatus();
  }
  if (!checked.ok()) return checked.status();
  if (stopping_) return absl::UnavailableError("the coordinator is going down; try again");
  if (absl::Status status = CheckSoleWriter(checked->spec.name()); !status.ok()) return status;
  v1::DistillationJob job;
  job.set_id(absl::StrCat("boost-", records_.next_number() + 1));
  *job.mutable_spec() = std::move(checked->spec);
  if (absl::Status s = PinModels(*tools_.artifacts, job.mutable_spec()); !s.ok()) return s;
  job.set_owner(owner);
  job.set_state(v1::DISTILLATION_QUEUED);
  job.set_prompts(checked->prompts.prompts_size());
  job.set_held_out(checked->prompts.held_out_size());
  for (const std::string& output : checked->outputs) job.add_ssms()->set_output(output);
  job.set_created_unix_ms(tools_.clock->NowUnixMillis());
  job.set_idempotency_key(key);
  if (!key.empty()) job.set_request_sha256(sum);
  absl::Status status = tools_.store->PutBlob(DistillationPromptsBlob(job.id()),
                                              checked->prompts.SerializeAsString());
  if (status.ok()) status = Write(job);
  if (!status.ok()) return status;
  spdlog::info("boost id={} state=queued llm=\"{}\" ssms={} prompts={}", job.id(),
               absl::CHexEscape(job.spec().llm()), job.ssms_size(), job.prompts());
  *reply->mutable_job() = std::move(job);
  return absl::OkStatus();
}

absl::Status DistillationRunner::Get(const v1::DistillationRequest& request,
                                     v1::DistillationReply* reply) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<v1::DistillationJob*> job = Find(request.id());
  if (!job.ok()) return job.status();
  *reply->mutable_job() = **job;
  return absl::OkStatus();
}

absl::Status DistillationRunner::List(v1::ListDistillationsReply* reply) {
  absl::MutexLock lock(&mutex_);
  *reply->mutable_jobs() = records_.jobs();
  return absl::OkStatus();
}

absl::Status DistillationRunner::Cancel(const v1::DistillationRequest& request,
                                        v1::DistillationReply* reply) {
  std::string training;
  {
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<v1::DistillationJob*> job = Find(request.id());
    if (!job.ok()) return job.status();
    if (IsOver((*job)->state())) {
      return absl::FailedPreconditionError(
          absl::StrCat(request.id(), " is ", StateName((*job)->state()), " already"));
    }
    v1::DistillationJob cancelled = **job;
    cancelled.set_state(v1::DISTILLATION_CANCELLED);
    cancelled.set_finished_unix_ms(tools_.clock->NowUnixMillis());
    if (absl::Status status = Write(cancelled); !status.ok()) return status;
    if (running_ == request.id()) cancel_ = true;
    for (const v1::DistilledSsm& ssm : cancelled.ssms()) {
      if (!ssm.job_id().empty() && !ssm.trained()) training = ssm.job_id();
    }
    *reply->mutable_job() = std::move(cancelled);
  }
  if (training.empty()) return absl::OkStatus();
  v1::CancelRequest cancel;
  cancel.set_job_id(training);
  v1::CancelReply ignored;
  // It may have ended already.
  tools_.jobs->Cancel(cancel, &ignored).IgnoreError();
  return absl::OkStatus();
}

absl::Status DistillationRunner::Resume(const v1::DistillationRequest& request,
                                        v1::DistillationReply* reply) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<v1::DistillationJob*> job = Find(request.id());
  if (!job.ok()) return job.status();
  const v1::DistillationState state = (*job)->state();
  if (state != v1::DISTILLATION_FAILED && state != v1::DISTILLATION_CANCELLED) {
    return absl::FailedPreconditionError(absl::StrCat(
        request.id(), " is ", StateName(state), "; only a failed or cancelled one can be resumed"));
  }
  if (running_ == request.id()) {
    return absl::UnavailableError(absl::StrCat(request.id(), " is still ending; try again"));
  }
  if (absl::Status status = CheckSoleWriter((*job)->spec().name()); !status.ok()) return status;
  for (const v1::DistilledSsm& ssm : (*job)->ssms()) {
    if (ssm.job_id().empty() || ssm.trained()) continue;
    v1::GetJobRequest get;
    get.set_job_id(ssm.job_id());
    v1::GetJobReply training;
    if (absl::Status status = tools_.jobs->Get(get, &training); !status.ok()) return status;
    if (!IsOver(training.job().state()) || training.job().state() == v1::SUCCEEDED) {
      continue;
    }
    v1::ResumeRequest resume;
    resume.set_job_id(ssm.job_id());
    v1::ResumeReply resumed;
    if (absl::Status status = tools_.jobs->Resume(resume, &resumed); !status.ok()) return status;
  }
  v1::DistillationJob queued = **job;
  queued.set_state(v1::DISTILLATION_QUEUED);
  queued.clear_error();
  queued.clear_finished_unix_ms();
  if (absl::Status status = Write(queued); !status.ok()) return status;
  *reply->mutable_job() = std::move(queued);
  return absl::OkStatus();
}

bool DistillationRunner::HasWork() const {
  return stopping_ ||
         std::any_of(records_.jobs().begin(), records_.jobs().end(),
                     [](const v1::DistillationJob& job) { return !IsOver(job.state()); });
}

const v1::DistillationJob* DistillationRunner::Next() {
  const auto next =
      std::find_if(records_.jobs().begin(), records_.jobs().end(),
                   [](const v1::DistillationJob& job) { return !IsOver(job.state()); });
  return next == records_.jobs().end() ? nullptr : &*next;
}

void DistillationRunner::Loop() {
  while (true) {
    v1::DistillationJob job;
    absl::Status begun;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &DistillationRunner::HasWork));
      if (stopping_) return;
      job = *Next();
      job.set_state(v1::DISTILLATION_RUNNING);
      running_ = job.id();
      cancel_ = false;
      begun = Write(job);
    }
    RunOne(job, begun);
  }
}

absl::Status DistillationRunner::Interrupted() {
  absl::MutexLock lock(&mutex_);
  if (cancel_) return absl::CancelledError("it was cancelled");
  if (stopping_ || tools_.models->draining())
    return absl::UnavailableError("the daemon is stopping");
  return absl::OkStatus();
}

void DistillationRunner::RunOne(const v1::DistillationJob& job, absl::Status status) {
  DistillationRun::Listener listener;
  listener.save = [this](const v1::DistillationJob& now) {
    if (absl::Status status = Interrupted(); !status.ok()) return status;
    absl::MutexLock lock(&mutex_);
    // If cancelled, the record is not this run's any more.
    return cancel_ ? absl::CancelledError("it was cancelled") : Write(now);
  };
  listener.progress = [this, id = job.id()](const std::string& stage, int64_t done, int64_t total) {
    if (absl::Status status = Interrupted(); !status.ok()) return status;
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<v1::DistillationJob*> record = Find(id);
    if (!record.ok()) return record.status();
    (*record)->set_stage(stage);
    (*record)->set_done(done);
    (*record)->set_total(total);
    return absl::OkStatus();
  };
  DistillationRun run(tools_, job, std::move(listener));
  if (status.ok()) status = run.Run();

  absl::MutexLock lock(&mutex_);
  running_.clear();
  if (stopping_ || cancel_ || tools_.models->draining()) {
    // An interrupted run continues after the next start; do not retry in a loop.
    if (!cancel_) stopping_ = true;
    return;
  }
  v1::DistillationJob over = run.job();
  over.set_state(status.ok() ? v1::DISTILLATION_SUCCEEDED : v1::DISTILLATION_FAILED);
  over.set_error(std::string(status.message()));
  over.set_finished_unix_ms(tools_.clock->NowUnixMillis());
  over.clear_stage();
  spdlog::info("boost id={} state={} error=\"{}\"", over.id(), StateName(over.state()),
               absl::CHexEscape(over.error()));
  if (absl::Status written = Write(over); !written.ok()) {
    // Keep the state in memory at least, so that the job does not run again.
    spdlog::error("boost id={} not written: {}", over.id(), written.ToString());
    if (absl::StatusOr<v1::DistillationJob*> record = Find(over.id()); record.ok()) **record = over;
    return;
  }
  if (status.ok()) tools_.store->PutBlob(DistillationPromptsBlob(over.id()), "").IgnoreError();
}

}  // namespace espalier
