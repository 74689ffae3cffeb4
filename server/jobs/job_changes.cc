// Lists of the jobs of JobRunner, and changes and deletions of them.
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/states.h"
#include "server/access/job_priority.h"
#include "server/jobs/checkpoint_folders.h"
#include "server/jobs/job_message.h"
#include "server/jobs/job_runner.h"
#include "server/jobs/job_time_limit.h"
#include "server/jobs/stored_values.h"
#include "server/recordings/stored_checkpoints.h"

namespace espalier {
namespace {

// Ids below this number were given, perhaps to jobs that are deleted.
constexpr char kNextNumber[] = "jobs/next-number";
// How long Delete waits for the workers of a job that was just cancelled.
constexpr absl::Duration kWaitForEnd = absl::Seconds(15);

}  // namespace

absl::Status JobRunner::List(const v1::ListJobsRequest& request, const Caller& caller,
                             v1::ListJobsReply* reply) const {
  JobIndex::Page page;
  std::vector<std::string> changing;
  {
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<JobIndex::Page> found =
        index_.List(request, [&](const std::string& owner) { return caller.MayUse(owner); });
    if (!found.ok()) return found.status();
    page = *std::move(found);
    for (const std::string& id : page.ids) {
      const Job& job = *jobs_.at(id);
      *reply->add_jobs() = job.record.job;
      // What is not durable yet is told to nobody.
      if (job.dirty || job.writing) changing.push_back(id);
    }
  }
  for (v1::Job& job : *reply->mutable_jobs()) {
    if (changing.empty()) break;
    if (changing.front() != job.id()) continue;
    changing.erase(changing.begin());
    absl::StatusOr<JobRecord> record = store_->Get(job.id());
    if (absl::IsNotFound(record.status())) continue;  // it was deleted meanwhile
    if (!record.ok()) return record.status();
    job = std::move(record->job);
    StripSpec(&job);
    job.clear_plan();
  }
  reply->set_next_page_token(page.next_page_token);
  reply->set_matching(page.matching);
  return absl::OkStatus();
}

absl::Status JobRunner::Update(const v1::UpdateJobRequest& request, const Caller& caller,
                               v1::UpdateJobReply* reply) {
  constexpr char kMethod[] = "Training/Update";
  if (request.has_priority()) {
    if (absl::Status s = CheckPriority("priority", request.priority()); !s.ok()) return s;
  }
  if (request.has_time_limit_seconds()) {
    absl::Status s = CheckTimeLimit("time_limit_seconds", request.time_limit_seconds());
    if (!s.ok()) return s;
  }
  if (!request.has_priority() && !request.has_time_limit_seconds()) {
    return absl::InvalidArgumentError("priority, time_limit_seconds: give one of them, or both");
  }
  const std::string& key = request.idempotency_key();
  return idempotency_.RunOnce(kMethod, key, request, reply, [&]() -> absl::Status {
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<Job*> found = Find(request.job_id());
    if (!found.ok()) return found.status();
    Job& job = **found;
    v1::Job& record = job.record.job;
    if (IsOver(job.life.state) || (request.has_priority() && job.life.state != v1::QUEUED)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "job ", record.id(), " is ", StateName(job.life.state),
          IsOver(job.life.state)
              ? "; only one that is not over can be changed"
              : "; the priority only counts in the queue, and cannot be changed any more"));
    }
    std::string said;
    if (request.has_priority()) {
      record.set_priority(request.priority());
      record.set_priority_among_owners(PriorityAmongOwners(caller, request.priority()));
      said = absl::StrCat("its priority is ", record.priority(), " now");
      if (record.priority_among_owners() != record.priority()) {
        absl::StrAppend(&said, ", and ", record.priority_among_owners(), " among other owners'");
      }
    }
    if (request.has_time_limit_seconds()) {
      record.set_time_limit_seconds(request.time_limit_seconds());
      absl::StrAppend(&said, said.empty() ? "" : "; ", "its time limit is ",
                      request.time_limit_seconds() > 0
                          ? absl::FormatDuration(absl::Seconds(request.time_limit_seconds()))
                          : "none",
                      " now");
      job.limit_asked = false;
    }
    job.pending.messages.push_back(InfoMessage(said));
    MarkDirty(&job);
    Settle(&job);
    *reply->mutable_job() = record;
    if (!key.empty()) {
      job.pending.idempotency_record = MakeIdempotencyRecord(kMethod, key, request, *reply);
    }
    absl::Status status = Flush(&job);
    Wake();
    return status;
  });
}

absl::StatusOr<JobRunner::Job*> JobRunner::FindForDeletion(const std::string& job_id) {
  const absl::Time deadline = absl::Now() + kWaitForEnd;
  while (true) {
    absl::StatusOr<Job*> found = Find(job_id);
    if (!found.ok()) return found.status();
    Job& job = **found;
    const v1::JobState state = job.life.state;
    if (!IsOver(state)) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", job_id, " is ", StateName(state),
                       "; only one that is over can be deleted. Cancel it first: espalier jobs "
                       "cancel ",
                       job_id));
    }
    if (job.attempt == nullptr && !job.life.attempt_running && !job.writing && !job.dirty) {
      return &job;
    }
    if (stopping_) return absl::UnavailableError("the coordinator is going down; try again");
    if (absl::Now() >= deadline) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", job_id, " is ", StateName(state),
                       ", and its workers have not stopped yet; try again in a while"));
    }
    published_.WaitWithTimeout(&mutex_, absl::Milliseconds(50));
  }
}

absl::Status JobRunner::Delete(const v1::DeleteJobRequest& request, v1::DeleteJobReply* reply) {
  constexpr char kMethod[] = "Training/Delete";
  const std::string& key = request.idempotency_key();
  return idempotency_.RunOnce(kMethod, key, request, reply, [&]() -> absl::Status {
    const std::string& id = request.job_id();
    bool done = false;
    if (deletion_listener_ != nullptr) {
      if (absl::Status s = deletion_listener_->BeforeDeletion(id); !s.ok()) return s;
    }
    const absl::Cleanup tell = [&] {
      if (deletion_listener_ != nullptr) deletion_listener_->AfterDeletion(id, done);
    };
    std::shared_ptr<Job> job;
    int64_t next_number = 0;
    {
      absl::MutexLock lock(&mutex_);
      absl::StatusOr<Job*> found = FindForDeletion(id);
      if (!found.ok()) return found.status();
      job = (*found)->shared_from_this();
      // If this is interrupted, the job is still there, without checkpoints.
      if (!job->record.checkpoint_dir.empty()) {
        job->record.checkpoint_dir.clear();
        job->life.checkpoint_step = 0;
        job->record.job.set_checkpoint_step(0);
        MarkDirty(job.get());
        if (absl::Status status = Flush(job.get()); !status.ok()) return status;
        if (!IsOver(job->life.state)) {
          return absl::FailedPreconditionError(
              absl::StrCat("job ", id, " was resumed meanwhile, from the beginning"));
        }
      }
      if (job->deleted) return JobNotFound(id);
      job->deleted = true;
      jobs_.erase(id);  // nobody finds it any more
      index_.Remove(job->number);
      names_.Remove(id);
      next_number = next_number_;
    }
    RemoveFilesOf(*job);
    absl::Status status = ReserveNumbers(job->number, next_number);
    if (status.ok()) status = ReserveVersion(job->record.job);
    if (status.ok() && tools_.recordings != nullptr) {
      status = tools_.recordings->RemoveFacts(id, job->life.attempts);
      if (tools_.spool != nullptr) tools_.spool->RemoveDeleted();
    }
    if (status.ok()) {
      std::optional<IdempotencyRecord> record;
      if (!key.empty()) record = MakeIdempotencyRecord(kMethod, key, request, *reply);
      status = store_->DeleteJob(id, record.has_value() ? &*record : nullptr);
    }
    absl::MutexLock lock(&mutex_);
    if (!status.ok()) {
      metrics_->StoreError();
      job->deleted = false;
      jobs_[id] = job;
      index_.Put(SummaryOf(job->number, job->record.job));
      PutName(job->record.job);
      return status;
    }
    Forget(job.get());
    done = true;
    spdlog::info("job id={} deleted", id);
    return absl::OkStatus();
  });
}

void JobRunner::RemoveFilesOf(const Job& job) {
  const std::string& id = job.record.job.id();
  if (job.stream != nullptr) job.stream->Remove();
  RemoveLeftValues(*tools_.data_folder, id);
  // First: RemoveCheckpoints leaves it, and the job's folder with it.
  tools_.checkpoints->Delete(JoinPath(id, kFetchedFolder)).IgnoreError();
  RemoveCheckpoints(*tools_.checkpoints, id, job.life.attempts, "");
}

absl::Status JobRunner::ReserveNumbers(int64_t deleted, int64_t next_number) {
  absl::MutexLock lock(&deletions_mutex_);
  if (deleted < durable_next_number_) return absl::OkStatus();
  absl::Status status = store_->PutBlob(kNextNumber, absl::StrCat(next_number));
  if (status.ok()) durable_next_number_ = next_number;
  return status;
}

absl::Status JobRunner::LoadNextNumber() {
  const absl::StatusOr<std::string> text = store_->GetBlob(kNextNumber);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  int64_t number = 0;
  if (!absl::SimpleAtoi(*text, &number) || number <= 0) {
    return absl::DataLossError(absl::StrCat("job store: ", kNextNumber, " is '",
                                            absl::CHexEscape(text->substr(0, 100)),
                                            "', and no number"));
  }
  next_number_ = std::max(next_number_, number);
  return absl::OkStatus();
}

}  // namespace espalier
