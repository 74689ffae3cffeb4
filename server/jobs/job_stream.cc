// The examples that clients push to jobs of JobRunner.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/states.h"
#include "server/jobs/checkpoint_folders.h"
#include "server/jobs/job_runner.h"
#include "server/jobs/prepare_stream.h"

namespace espalier {
namespace {

// How long a call waits for room in the backlog, and how often it looks whether the job goes on.
constexpr absl::Duration kWaitForRoom = absl::Seconds(5);
constexpr absl::Duration kLookAtJob = absl::Milliseconds(250);

}  // namespace

void JobRunner::OpenStream(Job* job) const {
  const v1::TrainingSpec& spec = job->record.job.spec();
  if (spec.dataset().format() != v1::Dataset::STREAM) return;
  ExampleStreamOptions options;
  options.files = tools_.files;
  options.clock = clock_;
  options.folder = JoinPath(JobFolder(job->record.job.id()), kStreamFolder);
  if (spec.dataset().stream().backlog() > 0) options.backlog = spec.dataset().stream().backlog();
  options.max_steps = spec.steps();
  job->stream = std::make_shared<ExampleStream>(std::move(options));
  job->stream->SetStepsDone(job->record.job.steps_done());
  if (job->record.job.state() != v1::SUCCEEDED) {  // whose examples are removed
    job->record.job.set_steps_pushed(job->stream->steps_pushed());
  }
}

absl::Status JobRunner::CheckStream(const v1::TrainingSpec& spec) const {
  if (options_.keeps_pushed_examples || spec.dataset().format() != v1::Dataset::STREAM) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "spec.dataset.format: STREAM: examples that a client pushes are kept in the coordinator's "
      "data folder, and the coordinators of this cluster do not share one (--artifact-store), so "
      "none could go on with the job of another: upload the examples as a dataset, or name one in "
      "s3:// (--dataset-root)");
}

absl::StatusOr<std::shared_ptr<ExampleStream>> JobRunner::StreamOf(
    const std::string& job_id) const {
  if (stopping_) return absl::UnavailableError("the coordinator is going down; push again");
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) return JobNotFound(job_id);
  const Job& job = *found->second;
  if (job.stream == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job_id, " has a dataset; only one whose dataset.format is STREAM takes examples"));
  }
  if (!IsOver(job.life.state)) return job.stream;
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", job_id, " is ", StateName(job.life.state), " and takes no examples",
      job.life.state == v1::SUCCEEDED
          ? ""
          : absl::StrCat("; resume it (espalier jobs resume ", job_id,
                         "), then go on pushing those of step ", job.stream->steps_pushed())));
}

absl::Status JobRunner::CheckTakesExamples(const std::string& job_id) const {
  absl::MutexLock lock(&mutex_);
  return StreamOf(job_id).status();
}

absl::Status JobRunner::PushExamples(const std::string& job_id, PushedExamples examples,
                                     const std::function<bool()>& cancelled,
                                     v1::PushExamplesReply* reply) {
  std::map<std::string, StreamColumn> columns;
  int64_t batch_size = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status s = StreamOf(job_id).status(); !s.ok()) return s;
    const v1::TrainingSpec& spec = jobs_.at(job_id)->record.job.spec();
    batch_size = spec.batch_size();
    columns = StreamColumnsOf(spec.dataset().stream());
  }
  absl::StatusOr<PushedBatches> batches = examples.Take(columns, batch_size);
  if (!batches.ok()) return batches.status();
  if (batches->steps == 0 && !batches->end) {
    return absl::InvalidArgumentError("columns: the call brings no examples, and no end");
  }
  const absl::Time deadline = absl::Now() + kWaitForRoom;
  while (true) {
    std::shared_ptr<ExampleStream> stream;
    {
      absl::MutexLock lock(&mutex_);
      absl::StatusOr<std::shared_ptr<ExampleStream>> found = StreamOf(job_id);
      if (!found.ok()) return found.status();
      stream = *std::move(found);
    }
    const absl::StatusOr<bool> taken = stream->Push(*batches, kLookAtJob);
    if (!taken.ok()) return taken.status();
    if (!*taken && cancelled()) return absl::CancelledError("the caller has gone");
    if (!*taken && absl::Now() < deadline) continue;
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<Job*> found = Find(job_id);
    if (!found.ok()) return found.status();
    Job& job = **found;
    if (*taken && job.attempt != nullptr) job.attempt->ExamplesPushed();
    const int64_t pushed = stream->steps_pushed();
    if (const int64_t more = pushed - job.record.job.steps_pushed(); more > 0) {
      metrics_->BatchesPushed(more);
      job.record.job.set_steps_pushed(pushed);
      MarkDirty(&job);  // after a restart the files count
    }
    reply->set_full(!*taken);
    reply->set_steps_pushed(pushed);
    reply->set_ended(stream->ended());
    reply->set_steps_done(job.record.job.steps_done());
    return absl::OkStatus();
  }
}

}  // namespace espalier
