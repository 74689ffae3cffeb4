#include "server/jobs/job_runner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/machine_memory.h"
#include "proto/states.h"
#include "server/jobs/checkpoint_folders.h"
#include "server/jobs/job_message.h"
#include "server/jobs/stored_values.h"

namespace espalier {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kMedianEvery = absl::Seconds(1);

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Returns 7 for job-7, and 0 for what is no job's id.
int64_t NumberOf(const std::string& job_id) {
  absl::string_view digits = job_id;
  int64_t number = 0;
  const bool is_id = absl::ConsumePrefix(&digits, "job-") && absl::SimpleAtoi(digits, &number);
  return is_id && number > 0 && absl::StrCat("job-", number) == job_id ? number : 0;
}

// Returns true if a finished job's step time differs from its plan's prediction.
bool HasDrifted(const v1::Job& job, double predicted) {
  constexpr double kMostError = 0.25;
  constexpr double kMostSeconds = 2e-3;  // what a step costs beside its operators, by far
  constexpr int64_t kMinSteps = 10;      // the first steps are atypical
  const double measured = job.median_step_seconds();
  if (job.steps_done() < kMinSteps || predicted <= 0 || measured <= 0) return false;
  return std::abs(predicted / measured - 1) > kMostError &&
         std::abs(predicted - measured) > kMostSeconds;
}

// `drifts` are sorted, worst first.
std::string DescribeDrift(const v1::Job& job, double predicted,
                          const std::vector<PredictionError>& drifts) {
  constexpr size_t kMostNamed = 3;
  const double measured = job.median_step_seconds();
  std::string message = absl::StrFormat(
      "a step took %.4g ms, the plan predicted %.4g ms (%+.0f %%). Either other programs "
      "used the workers' machines, or what was measured there did not hold any more (espalier "
      "profile show)",
      1e3 * measured, 1e3 * predicted, 100 * (measured / predicted - 1));
  for (size_t i = 0; i < std::min(kMostNamed, drifts.size()); ++i) {
    absl::StrAppendFormat(&message, "%s %s %.3g ms for %.3g ms", i == 0 ? ". Furthest off:" : ",",
                          drifts[i].node, 1e3 * drifts[i].measured_seconds,
                          1e3 * drifts[i].predicted_seconds);
  }
  if (!drifts.empty()) message += "; the next plan uses what this run took";
  return message;
}

}  // namespace

JobRunner::JobRunner(JobRunnerOptions options, AttemptTools tools, JobStore* store,
                     const Clock* clock, Metrics* metrics)
    : options_(std::move(options)),
      tools_(std::move(tools)),
      store_(store),
      clock_(clock),
      metrics_(metrics),
      idempotency_(store),
      fair_share_(options_.fair_share) {}

JobRunner::~JobRunner() { Stop(); }

std::string JobRunner::JobFolder(const std::string& job_id) const {
  return JoinPath(options_.input_folder, job_id);
}

absl::Status JobRunner::Start() {
  absl::StatusOr<std::vector<JobRecord>> records = store_->List();
  if (!records.ok()) return records.status();
  if (absl::Status status = NameOlderJobs(&*records); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = LoadNextNumber(); !status.ok()) return status;
  if (absl::Status status = LoadUsage(); !status.ok()) return status;
  for (JobRecord& record : *records) {
    auto job = std::make_shared<Job>();
    const int64_t number = NumberOf(record.job.id());
    job->number = number > 0 ? number : next_number_;
    next_number_ = std::max(next_number_, job->number + 1);
    index_.Put(SummaryOf(job->number, record.job));
    job->ran_seconds = record.job.running_seconds();
    job->device_seconds = record.job.device_seconds();
    job->life.state = record.job.state();
    job->life.attempts = record.job.attempts();
    job->life.checkpoint_step = record.job.checkpoint_step();
    job->life.attempts_without_progress = record.attempts_without_progress;
    job->life.failures = record.failures;
    job->record = std::move(record);
    job->record.checkpoint_dir =
        job->life.state == v1::SUCCEEDED ? "" : CheckpointWithinJob(job->record.checkpoint_dir);
    if (absl::Status status = LoadValidations(job.get()); !status.ok()) return status;
    absl::Status status = Apply(job.get(), {.kind = JobEventKind::kRestart});
    if (!status.ok()) return status;
    if (job->life.state == v1::RECOVERING) {
      absl::StatusOr<JobRecord> full = store_->Get(job->record.job.id());
      if (full.ok()) job->enough = MemoryOf(full->job.plan().devices());
      job->recovering_since = clock_->Now();
    }
    OpenStream(job.get());
    // The workers join again one after the other; the first is not to begin alone.
    job->waits_for_workers = job->life.state == v1::QUEUED;
    job->workers_before = job->record.job.most_workers();
    by_number_[job->number] = job;
    jobs_[job->record.job.id()] = job;
    recorded_bytes_ += job->record.job.recorded_bytes();
    if (named_now_.contains(job->record.job.id())) MarkDirty(job.get());
    Settle(job.get());
  }
  std::vector<Job*> changed;
  for (const int64_t number : dirty_) changed.push_back(by_number_.at(number).get());
  for (const absl::Status& status : FlushAll(changed)) {
    if (!status.ok()) return status;
  }
  if (absl::Status status = ReserveUnknownJobs(); !status.ok()) return status;
  loop_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

// The store may have been lost or damaged: a new job of the same id would remove what is left of
// the old one.
absl::Status JobRunner::ReserveUnknownJobs() {
  const absl::StatusOr<std::vector<ObjectReader::Object>> objects = tools_.checkpoints->List("");
  if (!objects.ok()) return objects.status();
  CountRecordings(*objects);
  std::set<std::string> folders, unknown;
  for (const ObjectReader::Object& object : *objects) {
    folders.insert(object.name.substr(0, object.name.find('/')));
  }
  // Pushed examples are there, whatever the store of checkpoints.
  const absl::StatusOr<std::vector<std::string>> here = tools_.files->List(options_.input_folder);
  if (here.ok()) folders.insert(here->begin(), here->end());
  for (const std::string& job : folders) {
    if (jobs_.contains(job) || NumberOf(job) == 0) continue;
    next_number_ = std::max(next_number_, NumberOf(job) + 1);
    unknown.insert(job);
  }
  if (unknown.empty()) return absl::OkStatus();
  spdlog::warn(
      "jobs: the job store has no {}, of which there are checkpoints; if it ought to know them, "
      "restore the job store from a backup and start again",
      absl::StrJoin(unknown, ", "));
  return absl::OkStatus();
}

void JobRunner::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    for (const int64_t number : active_) by_number_.at(number)->attempt->Stop();
    published_.SignalAll();
  }
  {
    absl::MutexLock lock(&wake_mutex_);
    quit_ = true;
    wake_.SignalAll();
  }
  if (loop_.joinable()) loop_.join();
}

void JobRunner::Wake() {
  absl::MutexLock lock(&wake_mutex_);
  woken_ = true;
  wake_.SignalAll();
}

void JobRunner::WorkersChanged() { Wake(); }

absl::Status JobRunner::Apply(Job* job, const JobLifecycleEvent& event) {
  absl::StatusOr<JobDecision> decision = Decide(job->life, event, options_.policy);
  if (!decision.ok()) {
    return absl::Status(decision.status().code(), absl::StrCat("job ", job->record.job.id(), ": ",
                                                               decision.status().message()));
  }
  v1::Job& record = job->record.job;
  const v1::JobState before = job->life.state;
  if (job->life == decision->life && decision->actions.empty() && !decision->message) {
    return absl::OkStatus();
  }
  job->life = decision->life;
  record.set_state(job->life.state);
  record.set_attempts(job->life.attempts);
  record.set_checkpoint_step(job->life.checkpoint_step);
  if (IsOver(job->life.state)) record.clear_checkpoints_paused();
  job->record.attempts_without_progress = job->life.attempts_without_progress;
  job->record.failures = job->life.failures;
  if (job->life.state != before) {
    const int64_t now = clock_->NowUnixMillis();
    if (job->life.state == v1::RUNNING && record.started_unix_ms() == 0) {
      record.set_started_unix_ms(now);
    }
    record.set_finished_unix_ms(IsOver(job->life.state) ? now : 0);
    record.set_error(job->life.state == v1::FAILED ? decision->error : "");
    if (job->life.state == v1::RECOVERING) {
      job->recovering_since = clock_->Now();
      job->workers_since = absl::InfiniteFuture();
    }
    spdlog::info("job id={} state={} attempt={} checkpoint_step={} error=\"{}\"", record.id(),
                 StateName(job->life.state), job->life.attempts, job->life.checkpoint_step,
                 absl::CHexEscape(record.error()));
  }
  if (decision->message) job->pending.messages.push_back(*std::move(decision->message));
  for (JobAction action : decision->actions) {
    switch (action) {
      case JobAction::kRollBack:
        RollBack(job);
        break;
      case JobAction::kStopAttempt:
        if (job->attempt != nullptr) job->attempt->Stop();
        break;
      case JobAction::kReleaseWorkers:
        tools_.workers->Release(record.id());
        break;
      case JobAction::kStartAttempt:
        break;  // done by Begin once the attempt's number is durable
    }
  }
  MarkDirty(job);
  Settle(job);
  return absl::OkStatus();
}

void JobRunner::Loop() {
  while (true) {
    bool quit;
    {
      absl::MutexLock lock(&wake_mutex_);
      if (!woken_ && !quit_) wake_.WaitWithTimeout(&wake_mutex_, kTick);
      woken_ = false;
      quit = quit_;
    }
    std::vector<std::thread> finished;
    struct Over {
      std::string id;
      int32_t attempts;
      std::string keep;  // checkpoint, within the job's folder
      int64_t best_steps;
      bool recorded, clean;  // clean: only the recording is left
      int64_t checkpoint_step;
      std::shared_ptr<ExampleStream> stream;  // that nobody needs any more; null: none
    };
    std::vector<Over> over;
    bool busy = false;
    {
      absl::MutexLock lock(&mutex_);
      WatchLeases();
      WatchDrains();
      EndAttempts(&finished);
      CheckTimes();
      FlushDirty();
      busy = !active_.empty();
      if (!stopping_) Schedule();
      // The last thing under the lock, which Schedule lets go at times: what is over now is not
      // begun before this thread comes here again.
      for (auto it = over_.begin(); it != over_.end();) {
        Job& job = *by_number_.at(*it);
        const bool is_over = IsOver(job.life.state) && job.attempt == nullptr;
        // Only once the job's end is durable: until then a restarted coordinator needs the
        // checkpoint.
        if (is_over && (job.dirty || job.writing)) {
          ++it;
          continue;
        }
        it = over_.erase(it);
        if (!is_over || job.deleted) continue;
        job.checkpoints_removed = true;
        over.push_back({job.record.job.id(), job.life.attempts, job.record.checkpoint_dir,
                        job.validations.kept_steps(), IsRecordedHere(job),
                        std::exchange(job.only_recording_left, false), job.life.checkpoint_step,
                        job.life.state == v1::SUCCEEDED ? job.stream : nullptr});
      }
    }
    for (std::thread& thread : finished) thread.join();
    if (!finished.empty()) ReturnFreeMemory();
    // Without the lock, as removing large files takes time. Only this thread starts attempts.
    for (const Over& job : over) {
      if (job.stream != nullptr) job.stream->Remove();
      RemoveLeftValues(*tools_.data_folder, job.id);
      if (!job.recorded) {
        RemoveCheckpoints(*tools_.checkpoints, job.id, job.attempts, job.keep, job.best_steps);
      } else if (!job.clean) {
        RemoveUnrecordedOf(job.id, job.attempts, job.checkpoint_step);
      }
    }
    ThinOldRecordings();
    SaveUsage(quit && !busy);
    if (quit && !busy) return;
  }
}

void JobRunner::WatchLeases() {
  for (const int64_t number : active_) {
    const std::shared_ptr<Job>& job = by_number_.at(number);
    if (job->attempt_over) continue;
    for (const Member& member : job->attempt->members()) {
      absl::Status status = tools_.workers->Check(member.lease);
      if (!status.ok()) {
        job->attempt->WorkerLost(member.lease.worker_id(), std::string(status.message()));
      }
    }
  }
}

void JobRunner::EndAttempts(std::vector<std::thread>* finished) {
  std::vector<std::shared_ptr<Job>> over;
  for (const int64_t number : active_) {
    if (by_number_.at(number)->attempt_over) over.push_back(by_number_.at(number));
  }
  for (const std::shared_ptr<Job>& job : over) {
    const std::string& id = job->record.job.id();
    const AttemptEnd end = std::move(job->end);
    finished->push_back(std::move(job->thread));
    const std::vector<v1::Device> devices = job->attempt->devices();
    job->attempt.reset();
    job->attempt_over = false;
    active_.erase(job->number);
    ReleaseDevices(job.get());
    MarkDirty(job.get());
    JobLifecycleEvent event{.kind = JobEventKind::kStopped,
                            .attempt = job->life.attempts,
                            .step = 0,
                            .reason = end.reason};
    switch (end.kind) {
      case AttemptEnd::kFinished:
        event.kind = JobEventKind::kFinished;
        break;
      case AttemptEnd::kWorkersLost:
        event.kind = JobEventKind::kWorkersLost;
        cut_off_.Add(end.cut_off, clock_->Now());
        break;
      case AttemptEnd::kTooFewWorkers:
        event.kind = JobEventKind::kTooFewWorkers;
        job->insufficient.push_back(MemoryOf(devices));
        job->workers_before = std::max(job->workers_before, job->enough.workers);
        break;
      case AttemptEnd::kCheckpointDamaged:
        event.kind = JobEventKind::kDamaged;
        event.step = end.fallback.steps_done;
        metrics_->CheckpointDamaged();
        spdlog::error("job id={}: {}", id, absl::CHexEscape(end.reason));
        // Folder and step must change together.
        if (IsActive(job->life.state)) job->record.checkpoint_dir = end.fallback.within_job;
        break;
      case AttemptEnd::kFailed:
        event.kind = JobEventKind::kAttemptFailed;
        break;
      case AttemptEnd::kStopped:
        break;
    }
    v1::Job& record = job->record.job;
    // A job that was cancelled (and perhaps resumed) meanwhile continues from its checkpoint.
    if (end.kind == AttemptEnd::kFinished && IsActive(job->life.state)) {
      record.clear_evaluation();
      for (const auto& [name, value] : end.evaluation) (*record.mutable_evaluation())[name] = value;
      record.set_evaluation_examples(end.evaluation_examples);
      record.set_stopped_early(end.stopped_early);
      record.set_output_model(end.output_model);
      job->record.checkpoint_dir.clear();  // the exported model replaces it
      record.clear_measured_peak_bytes();
      for (int64_t bytes : end.measured_peak_bytes) record.add_measured_peak_bytes(bytes);
      record.set_median_step_seconds(Median(job->step_seconds));
      if (HasDrifted(record, job->predicted_step_seconds)) {
        job->pending.messages.push_back(DetailMessage(
            DescribeDrift(record, job->predicted_step_seconds, end.calibration.drifts)));
        // If the run reported transfers, the stored profile is already up to date.
        if (!end.calibration.includes_transfers) tools_.planner->ForgetCommunication(devices);
      }
    }
    Apply(job.get(), event).IgnoreError();  // attempt endings are always valid
    Settle(job.get());
  }
}

void JobRunner::OnPlanned(const std::string& job_id, int32_t attempt, const PlanFacts& facts) {
  absl::MutexLock lock(&mutex_);
  Job& job = *jobs_.at(job_id);
  if (attempt != job.life.attempts || IsOver(job.life.state)) return;
  v1::Job& record = job.record.job;
  job.plan = facts.plan;
  job.predicted_step_seconds = facts.plan.prediction().step_seconds();
  job.enough = MemoryOf(facts.plan.devices());
  job.insufficient.clear();
  record.set_parameters(facts.parameters);
  record.set_total_steps(facts.total_steps);
  record.set_tokens_per_step(facts.tokens_per_step);
  job.pending.with_plan = true;
  MarkDirty(&job);
  Wake();
}

void JobRunner::OnRunning(const std::string& job_id, int32_t attempt) {
  absl::MutexLock lock(&mutex_);
  Job& job = *jobs_.at(job_id);
  job.running_since = clock_->Now();
  Apply(&job, {.kind = JobEventKind::kRunning, .attempt = attempt}).IgnoreError();
  Wake();
}

void JobRunner::OnStep(const std::string& job_id, int32_t attempt, const v1::StepReport& report) {
  metrics_->JobStep(report.seconds());
  absl::MutexLock lock(&mutex_);
  Job& job = *jobs_.at(job_id);
  if (attempt != job.life.attempts || IsOver(job.life.state)) return;
  job.pending.reports.push_back(report);
  recent_tensors_.Take(job_id, &job.pending.reports.back());
  job.record.job.set_steps_done(std::max(job.record.job.steps_done(), report.step() + 1));
  if (job.stream != nullptr) job.stream->SetStepsDone(job.record.job.steps_done());
  job.step_seconds.push_back(report.seconds());
  if (absl::Now() - job.median_at >= kMedianEvery) {
    job.median_at = absl::Now();
    job.record.job.set_median_step_seconds(Median(job.step_seconds));
  }
  MarkDirty(&job);
}

void JobRunner::AddMessage(const std::string& job_id, const v1::JobMessage& message) {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<Job*> job = Find(job_id);
  if (!job.ok()) return;  // it was deleted
  (*job)->pending.messages.push_back(message);
  MarkDirty(*job);
}

}  // namespace espalier
