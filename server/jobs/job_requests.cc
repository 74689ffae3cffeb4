// The client requests of JobRunner.
#include <spdlog/spdlog.h>

#include <deque>
#include <filesystem>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/machine_memory.h"
#include "proto/states.h"
#include "server/access/job_priority.h"
#include "server/artifacts/artifact_names.h"
#include "server/jobs/dry_run.h"
#include "server/jobs/job_message.h"
#include "server/jobs/job_runner.h"
#include "server/jobs/job_time_limit.h"
#include "server/jobs/prepare_job.h"
#include "server/jobs/trained_parameters.h"
#include "server/jobs/training_dataset.h"

namespace espalier {
namespace {

constexpr int kWatchPage = 500;
// Bytes of reports and messages in one reply: half of a message's limit; the other half is left for
// the job itself.
constexpr size_t kMaxLogBytes = 32 << 20;
// Submissions of less leave nothing behind that is worth looking for.
constexpr size_t kLargeSubmission = 1 << 20;

// A job that is interrupted must not go on from a model that has the name by then.
absl::Status PinModels(const ArtifactStore& artifacts, v1::TrainingSpec* spec) {
  for (std::string* name : {spec->mutable_init_artifact(), spec->mutable_tokenizer_artifact()}) {
    if (name->empty()) continue;
    absl::StatusOr<std::string> pinned = artifacts.Pinned(*name);
    if (!pinned.ok()) return pinned.status();
    *name = *std::move(pinned);
  }
  return absl::OkStatus();
}

size_t BytesOf(const JobLogEntry& entry) {
  constexpr size_t kFrame = 8;  // tag and length
  if (const auto* report = std::get_if<v1::StepReport>(&entry.entry)) {
    return kFrame + report->ByteSizeLong();
  }
  if (const auto* validation = std::get_if<LoggedValidation>(&entry.entry)) {
    return kFrame + validation->report.ByteSizeLong();
  }
  return kFrame + std::get<v1::JobMessage>(entry.entry).ByteSizeLong();
}

// Whether memory is to be given back after a submission: of its model or text, which was read.
bool IsLarge(const ArtifactStore& artifacts, const v1::TrainingSpec& spec) {
  if (spec.ByteSizeLong() > kLargeSubmission) return true;
  const auto is_large = [&](absl::string_view name) {
    if (name.empty()) return false;
    const absl::StatusOr<v1::Artifact> artifact = artifacts.Find(std::string(name));
    return artifact.ok() && artifact->bytes() > static_cast<int64_t>(kLargeSubmission);
  };
  if (is_large(spec.onnx_artifact()) || is_large(spec.init_artifact())) return true;
  for (const v1::Dataset* dataset : {&spec.dataset(), &spec.validation().dataset()}) {
    if (dataset->format() != v1::Dataset::TEXT) continue;
    absl::string_view name = dataset->uri();
    if (absl::ConsumePrefix(&name, "artifact:")) {
      if (is_large(name)) return true;
      continue;
    }
    std::error_code error;
    const uintmax_t bytes = std::filesystem::file_size(dataset->uri(), error);
    if (!error && bytes > kLargeSubmission) return true;
  }
  return false;
}

}  // namespace

size_t PlannedWorkers(const v1::SearchOptions& search) {
  return search.has_imported() ? static_cast<size_t>(search.imported().devices_size())
                               : static_cast<size_t>(std::max(0, search.pipeline_stages()));
}

void StripSpec(v1::Job* job) {
  job->mutable_spec()->clear_graph();
  job->mutable_spec()->mutable_search()->clear_imported();
  if (job->spec().has_optimizer()) {
    job->mutable_spec()->mutable_optimizer()->mutable_learning_rate()->clear_values();
  }
}

absl::Status JobNotFound(const std::string& job_id) {
  return absl::NotFoundError(
      absl::StrCat("there is no job '", job_id.substr(0, 100), "'; `espalier jobs` lists them"));
}

absl::StatusOr<JobRunner::Job*> JobRunner::Find(const std::string& job_id) {
  auto it = jobs_.find(job_id);
  if (it != jobs_.end()) return it->second.get();
  return JobNotFound(job_id);
}

std::optional<std::string> JobRunner::OwnerOf(const std::string& job_id) const {
  absl::MutexLock lock(&mutex_);
  const auto it = jobs_.find(job_id);
  if (it == jobs_.end()) return std::nullopt;
  return it->second->record.job.owner();
}

std::optional<std::string> JobRunner::OwnerOfOutput(const std::string& artifact) const {
  absl::MutexLock lock(&mutex_);
  return unfinished_.OwnerOfOutput(artifact);
}

absl::Status JobRunner::Submit(const v1::SubmitRequest& request, const Caller& caller,
                               v1::SubmitReply* reply) {
  constexpr char kMethod[] = "Training/Submit";
  const std::string& owner = caller.owner;
  const std::string key = OwnersKey(owner, request.idempotency_key());
  const absl::Cleanup give_back = [&] {
    if (IsLarge(*tools_.artifacts, request.spec())) ReturnFreeMemory();
  };
  return idempotency_.RunOnce(kMethod, key, request, reply, [&]() -> absl::Status {
    v1::TrainingSpec spec = request.spec();
    if (absl::Status s = CheckPriority("spec.priority", spec.priority()); !s.ok()) return s;
    if (absl::Status s = CheckTimeLimit("spec.time_limit_seconds", spec.time_limit_seconds());
        !s.ok()) {
      return s;
    }
    if (absl::Status s = CheckStream(spec); !s.ok()) return s;
    absl::StatusOr<PreparedJob> prepared =
        PrepareJob(*tools_.registry, *tools_.artifacts, *tools_.dataset_roots, spec);
    if (!prepared.ok()) return prepared.status();
    spec.set_batch_size(prepared->batch_size);
    if (absl::Status s = PinModels(*tools_.artifacts, &spec); !s.ok()) return s;
    if (absl::Status s = CheckStages(spec.search()); !s.ok()) return s;
    if (!spec.output_model().empty()) {
      if (absl::Status s = CheckClientArtifactName(spec.output_model()); !s.ok()) {
        return absl::Status(s.code(), absl::StrCat("spec.output_model: ", s.message()));
      }
      absl::StatusOr<v1::Artifact> taken = tools_.artifacts->Find(spec.output_model());
      if (taken.ok() && taken->kind() != v1::Artifact::MODEL) {
        return absl::AlreadyExistsError(
            absl::StrCat("spec.output_model: artifact '", spec.output_model(),
                         "' exists and is no model; choose another name"));
      }
    }
    for (const auto& [tokens, dataset] :
         {std::pair{&prepared->tokens, spec.mutable_dataset()},
          std::pair{&prepared->validation_tokens,
                    prepared->validation_tokens == nullptr
                        ? nullptr
                        : spec.mutable_validation()->mutable_dataset()}}) {
      if (*tokens == nullptr) continue;
      absl::StatusOr<std::string> kept = KeepTokens(tools_.artifacts, **tokens, owner);
      if (!kept.ok()) return kept.status();
      dataset->set_uri(absl::StrCat("artifact:", *kept));
      dataset->set_format(v1::Dataset::NPZ);
      prepared->notes.push_back(absl::StrCat("the tokens of the text are the dataset '", *kept,
                                             "', which jobs with the same text use again"));
      tokens->reset();
    }
    if (prepared->early_stopping.has_value()) {
      *spec.mutable_early_stopping() = *prepared->early_stopping;
    }
    if (spec.dataset().format() == v1::Dataset::STREAM) {
      v1::ExampleStream* stream = spec.mutable_dataset()->mutable_stream();
      *stream->mutable_columns() = prepared->stream.columns();
      *stream->mutable_ranges() = prepared->stream.ranges();
    }
    if (std::string note = PriorityNote(caller, spec.priority()); !note.empty()) {
      prepared->notes.push_back(std::move(note));
    }
    auto job = std::make_shared<Job>();
    if (!spec.name().empty()) {
      v1::Job named;
      named.set_owner(owner);
      named.mutable_spec()->set_name(spec.name());
      SetExperiment(&named);
      if (absl::Status s = LoadLastVersion(named); !s.ok()) return s;
    }
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return absl::UnavailableError("the coordinator is going down; try again");
      job->number = next_number_++;
      v1::Job& record = job->record.job;
      record.set_id(absl::StrCat("job-", job->number));
      record.set_owner(owner);
      record.mutable_spec()->set_name(spec.name());
      SetExperiment(&record);
      record.set_version(names_.TakeVersion(owner, record.experiment()));
    }
    v1::Job& record = job->record.job;
    const std::string id = record.id();
    *record.mutable_spec() = spec;
    record.set_state(v1::QUEUED);
    record.set_priority(spec.priority());
    record.set_priority_among_owners(PriorityAmongOwners(caller, spec.priority()));
    record.set_time_limit_seconds(spec.time_limit_seconds());
    record.set_created_unix_ms(clock_->NowUnixMillis());
    record.set_total_steps(prepared->total_steps);
    record.set_parameters(prepared->parameters);
    record.mutable_notes()->Assign(prepared->notes.begin(), prepared->notes.end());
    record.set_tokens_per_step(prepared->tokens_per_step);
    job->validations = ValidationHistory(spec.early_stopping());
    reply->set_job_id(id);
    *reply->mutable_trained() = CountTrained(prepared->parameter_uses);
    reply->mutable_notes()->Assign(prepared->notes.begin(), prepared->notes.end());
    JobWrite write;
    write.job = job->record;
    write.create = true;
    if (!key.empty()) {
      write.idempotency_record = MakeIdempotencyRecord(kMethod, key, request, *reply);
    }
    // Without the lock, so that one sync of the disk serves all who submit meanwhile.
    absl::Status status = store_->Write(id, write);
    if (!status.ok()) {
      metrics_->StoreError();
      return status;
    }
    job->planned = PlannedWorkers(spec.search());
    job->has_plan = spec.search().has_imported();
    StripSpec(&record);
    OpenStream(job.get());
    {
      absl::MutexLock lock(&mutex_);
      jobs_[id] = job;
      by_number_[job->number] = job;
      index_.Put(SummaryOf(job->number, record));
      PutName(record);
      Settle(job.get());
    }
    Wake();
    spdlog::info("job id={} state=queued name=\"{}\" steps={} parameters={}", id,
                 absl::CHexEscape(spec.name()), prepared->total_steps, prepared->parameters);
    return absl::OkStatus();
  });
}

absl::Status JobRunner::CheckStages(const v1::SearchOptions& search) const {
  if (search.pipeline_stages() <= 1) return absl::OkStatus();
  // Without any worker the size of the cluster is not known yet.
  const int live = tools_.workers->Live();
  if (live == 0 || search.pipeline_stages() <= live) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("spec.search.pipeline_stages: ", search.pipeline_stages(),
                   " stages need as many workers, and ", live,
                   " have joined; use fewer stages, or start more workers first"));
}

std::vector<ArtifactUse> JobRunner::ArtifactsInUse() const {
  absl::MutexLock lock(&mutex_);
  std::vector<ArtifactUse> uses = unfinished_.Inputs();
  for (const auto& [number, job] : by_number_) {
    const v1::Job& record = job->record.job;
    const bool replayed = IsRecordedHere(*job) && record.steps_done() > 0 &&
                          record.spec().dataset().format() != v1::Dataset::STREAM;
    if (!replayed || job->deleted) continue;
    for (const std::string& artifact : ArtifactsOf(record.spec())) {
      ArtifactUse& use = uses.emplace_back();
      use.artifact = artifact;
      use.user = absl::StrCat(record.experiment(), "@", record.version(), " (", record.id(), ")");
      use.owner = record.owner();
      use.replays = true;
    }
  }
  return uses;
}

absl::Status JobRunner::DryRun(const v1::DryRunRequest& request, v1::DryRunReply* reply) {
  if (absl::Status s = CheckStream(request.spec()); !s.ok()) return s;
  espalier::DryRun(tools_, request.spec(), reply);
  ReturnFreeMemory();
  return absl::OkStatus();
}

absl::Status JobRunner::Get(const v1::GetJobRequest& request, v1::GetJobReply* reply) {
  std::string paused;
  int64_t pushed = 0;
  std::optional<int64_t> before;
  {
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<Job*> job = Find(request.job_id());
    if (!job.ok()) return job.status();
    paused = (*job)->record.job.checkpoints_paused();
    pushed = (*job)->record.job.steps_pushed();
    if ((*job)->life.state == v1::QUEUED) {
      before = queue_.Before(request.job_id(), [this, now = clock_->Now()](const auto& owner) {
        mutex_.AssertHeld();
        return fair_share_.Usage(owner, now);
      });
    }
  }
  absl::StatusOr<JobRecord> record = store_->Get(request.job_id());
  if (!record.ok()) return record.status();
  *reply->mutable_job() = std::move(record->job);
  // Not the store's: that may be on the same full disk.
  reply->mutable_job()->set_checkpoints_paused(paused);
  reply->mutable_job()->set_steps_pushed(pushed);
  if (before.has_value()) reply->mutable_job()->set_queue_position(*before + 1);
  // Drop the submitted graph: it can be as large as a message may be, and its submitter has it.
  StripSpec(reply->mutable_job());
  if (!request.with_reports()) return absl::OkStatus();
  std::deque<JobLogEntry> newest;
  size_t bytes = 0;
  int64_t left_out = 0;
  for (bool more = true; more;) {
    const int64_t after = newest.empty() ? 0 : newest.back().sequence;
    absl::StatusOr<std::vector<JobLogEntry>> entries =
        store_->Log(request.job_id(), after, 0, kWatchPage);
    if (!entries.ok()) return entries.status();
    more = entries->size() == kWatchPage;
    for (JobLogEntry& entry : *entries) {
      bytes += BytesOf(entry);
      newest.push_back(std::move(entry));
    }
    for (; bytes > kMaxLogBytes && newest.size() > 1; ++left_out) {
      bytes -= BytesOf(newest.front());
      newest.pop_front();
    }
  }
  if (left_out > 0) {
    *reply->add_messages() = InfoMessage(absl::StrCat(
        "the oldest ", left_out, " reports and messages have no room here; `espalier logs ",
        request.job_id(), "` shows all"));
  }
  for (JobLogEntry& entry : newest) {
    if (auto* report = std::get_if<v1::StepReport>(&entry.entry)) {
      *reply->add_reports() = std::move(*report);
    } else if (auto* validation = std::get_if<LoggedValidation>(&entry.entry)) {
      *reply->add_validations() = std::move(validation->report);
    } else {
      *reply->add_messages() = std::get<v1::JobMessage>(std::move(entry.entry));
    }
  }
  return absl::OkStatus();
}

template <typename Request, typename Reply>
absl::Status JobRunner::ApplyRequest(const char* method, JobEventKind kind, const Request& request,
                                     Reply* reply) {
  return idempotency_.RunOnce(
      method, request.idempotency_key(), request, reply, [&]() -> absl::Status {
        absl::MutexLock lock(&mutex_);
        absl::StatusOr<Job*> job = Find(request.job_id());
        if (!job.ok()) return job.status();
        if (absl::Status status = Apply(*job, {.kind = kind}); !status.ok()) return status;
        if (kind == JobEventKind::kResume) {
          (*job)->ran_seconds = 0;  // the time limit is anew
          (*job)->limit_asked = false;
          (*job)->insufficient.clear();            // retry with the same workers
          (*job)->record.job.set_most_workers(0);  // or with all that are idle by now
        }
        *reply->mutable_job() = (*job)->record.job;
        reply->mutable_job()->clear_plan();
        if (!request.idempotency_key().empty()) {
          (*job)->pending.idempotency_record =
              MakeIdempotencyRecord(method, request.idempotency_key(), request, *reply);
          MarkDirty(*job);  // to store the idempotency record even if nothing else changed
        }
        return Flush(*job);
      });
}

absl::Status JobRunner::Cancel(const v1::CancelRequest& request, v1::CancelReply* reply) {
  return ApplyRequest("Training/Cancel", JobEventKind::kCancel, request, reply);
}

absl::Status JobRunner::Resume(const v1::ResumeRequest& request, v1::ResumeReply* reply) {
  absl::Status status = ApplyRequest("Training/Resume", JobEventKind::kResume, request, reply);
  Wake();
  return status;
}

absl::Status JobRunner::Watch(const v1::WatchRequest& request,
                              const std::function<bool(const v1::JobEvent&)>& send,
                              const std::function<bool()>& cancelled) {
  int64_t seen_version = -1;
  int64_t after = 0;
  std::string last_state;
  while (true) {
    int64_t version;
    {
      absl::MutexLock lock(&mutex_);
      absl::StatusOr<Job*> job = Find(request.job_id());
      if (!job.ok()) return job.status();
      while ((*job)->version == seen_version) {
        if (stopping_) return absl::UnavailableError("the coordinator is going down; watch again");
        if (cancelled()) return absl::CancelledError("the caller has gone");
        published_.WaitWithTimeout(&mutex_, absl::Milliseconds(250));
        job = Find(request.job_id());  // it may have been deleted
        if (!job.ok()) return job.status();
      }
      version = (*job)->version;
    }
    // Read after the version, so that everything written up to that version is in the store.
    absl::StatusOr<JobRecord> record = store_->Get(request.job_id());
    if (!record.ok()) return record.status();
    StripSpec(&record->job);
    const std::string state = absl::StrCat(record->job.state(), "/", record->job.attempts());
    const bool first = seen_version < 0;
    v1::JobEvent job_event;
    *job_event.mutable_job() = record->job;
    if (first && !send(job_event)) return absl::OkStatus();
    while (true) {
      absl::StatusOr<std::vector<JobLogEntry>> entries =
          store_->Log(request.job_id(), after, request.from_step(), kWatchPage);
      if (!entries.ok()) return entries.status();
      for (JobLogEntry& entry : *entries) {
        after = entry.sequence;
        v1::JobEvent event;
        if (auto* report = std::get_if<v1::StepReport>(&entry.entry)) {
          *event.mutable_step() = std::move(*report);
          absl::MutexLock lock(&mutex_);
          recent_tensors_.AddTo(request.job_id(), event.mutable_step());
        } else if (auto* validation = std::get_if<LoggedValidation>(&entry.entry)) {
          *event.mutable_validation() = std::move(validation->report);
        } else {
          *event.mutable_message() = std::get<v1::JobMessage>(std::move(entry.entry));
        }
        if (!send(event)) return absl::OkStatus();
      }
      if (entries->size() < kWatchPage) break;
      if (cancelled()) return absl::CancelledError("the caller has gone");
    }
    const bool over = IsOver(record->job.state());
    if (state != last_state && !first && !send(job_event)) return absl::OkStatus();
    last_state = state;
    seen_version = version;
    if (over || request.no_follow()) return absl::OkStatus();
  }
}

}  // namespace espalier
