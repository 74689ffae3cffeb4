// Jobs of JobRunner as versions of experiments.
#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "server/jobs/job_runner.h"

namespace espalier {
namespace {

RunName RunOf(const v1::Job& job) {
  return {job.experiment(), job.version(), job.owner(), job.id()};
}

// Versions up to the number in this blob were given, perhaps to jobs that are deleted.
std::string LastVersionBlob(const v1::Job& job) {
  return absl::StrCat("experiments/", Sha256Hex(absl::StrCat(job.owner(), "\n", job.experiment())),
                      "/last-version");
}

}  // namespace

absl::Status JobRunner::LoadLastVersion(const v1::Job& job) {
  const std::string blob = LastVersionBlob(job);
  const absl::StatusOr<std::string> text = store_->GetBlob(blob);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  int64_t version = 0;
  if (!absl::SimpleAtoi(*text, &version) || version <= 0) {
    return absl::DataLossError(absl::StrCat(
        "job store: ", blob, " is '", absl::CHexEscape(text->substr(0, 100)), "', and no number"));
  }
  absl::MutexLock lock(&mutex_);
  names_.Reserve(job.owner(), job.experiment(), version);
  return absl::OkStatus();
}

void JobRunner::SetExperiment(v1::Job* job) {
  job->set_experiment(job->spec().name().empty() ? job->id() : job->spec().name());
}

absl::Status JobRunner::NameOlderJobs(std::vector<JobRecord>* records) {
  for (const JobRecord& record : *records) {
    if (record.job.version() == 0) continue;
    absl::MutexLock lock(&mutex_);
    names_.Put(RunOf(record.job));
  }
  for (JobRecord& record : *records) {
    v1::Job& job = record.job;
    if (job.version() != 0) continue;
    SetExperiment(&job);
    // A version that keeps none may have run in between.
    if (!job.spec().name().empty()) {
      if (absl::Status status = LoadLastVersion(job); !status.ok()) return status;
    }
    absl::MutexLock lock(&mutex_);
    job.set_version(names_.TakeVersion(job.owner(), job.experiment()));
    names_.Put(RunOf(job));
    named_now_.insert(job.id());
  }
  return absl::OkStatus();
}

void JobRunner::PutName(const v1::Job& job) { names_.Put(RunOf(job)); }

absl::Status JobRunner::ReserveVersion(const v1::Job& job) {
  absl::MutexLock deletions(&deletions_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    // A later one is there, or was when it was deleted.
    if (names_.LastVersion(job.owner(), job.experiment()) > job.version()) return absl::OkStatus();
  }
  return store_->PutBlob(LastVersionBlob(job), absl::StrCat(job.version()));
}

absl::StatusOr<std::vector<RunName>> JobRunner::FindRuns(absl::string_view run,
                                                         RunVersions versions,
                                                         const Caller& caller) const {
  absl::MutexLock lock(&mutex_);
  return names_.Find(run, versions, {caller.owner, [&](const std::string& owner) {
                                       return caller.MayUse(owner);
                                     }});
}

}  // namespace espalier
