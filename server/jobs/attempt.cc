#include "server/jobs/attempt.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/rewrite/fuse.h"
#include "planner/lowering/checkpoint_sharding.h"
#include "server/jobs/export_model.h"
#include "server/jobs/job_message.h"
#include "server/jobs/kept_plan.h"
#include "server/jobs/prepare_job.h"
#include "server/jobs/prepare_validation.h"
#include "server/jobs/shard_places.h"
#include "server/jobs/stored_values.h"
#include "storage/data_folder_names.h"

namespace espalier {
namespace {

// A rank may read and verify a checkpoint of a hundred gigabytes; served models have the same
// limit. A worker that is lost meanwhile is detected by its lease.
constexpr absl::Duration kLoadTimeout = absl::Minutes(30);
constexpr absl::Duration kStopTimeout = absl::Seconds(3);
// After a rank has acknowledged Stop, its stream has this long to end before it is cancelled.
constexpr absl::Duration kDrainWait = absl::Seconds(5);
// The last resort, where neither leases nor streams show a failure: ranks may write shards of
// unequal sizes, and a stage may compute for minutes. Connecting has a shorter limit
// (worker/worker_job.h).
constexpr double kPeerTimeoutSeconds = 600;

}  // namespace

Attempt::Attempt(const AttemptTools& tools, AttemptTask task, AttemptObserver* observer)
    : tools_(tools),
      task_(std::move(task)),
      observer_(observer),
      validations_(task_.validations),
      merge_(static_cast<int>(task_.members.size()), task_.record.job.id()),
      checkpoint_{task_.checkpoint, task_.record.job.checkpoint_step()},
      recorded_(task_.members.size()),
      ranks_(task_.members.size()) {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].client = tools_.dial(task_.members[r]);
  }
}

Attempt::~Attempt() = default;

std::vector<v1::Device> Attempt::devices() const {
  std::vector<v1::Device> devices;
  for (const Member& member : task_.members) devices.push_back(member.device);
  return devices;
}

std::string Attempt::Describe(size_t rank) const {
  const Member& member = task_.members[rank];
  return absl::StrCat("worker ", member.lease.worker_id(),
                      member.name.empty() ? "" : absl::StrCat(" (", member.name, ")"));
}

v1::Attempt Attempt::AttemptMessage(size_t rank) const {
  v1::Attempt ticket;
  ticket.set_job_id(task_.record.job.id());
  ticket.set_attempt(static_cast<uint64_t>(task_.attempt));
  ticket.set_worker_epoch(task_.members[rank].lease.epoch());
  return ticket;
}

void Attempt::Stop() {
  absl::MutexLock lock(&mutex_);
  stop_ = true;
  changed_.SignalAll();
}

void Attempt::WorkerLost(const std::string& worker_id, const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (task_.members[r].lease.worker_id() != worker_id || !ranks_[r].lost.empty()) continue;
    ranks_[r].lost = reason;
    ranks_[r].client->Cancel();
    rank_failed_ = true;
  }
  changed_.SignalAll();
}

AttemptEnd Attempt::Run() {
  const v1::TrainingSpec& spec = task_.record.job.spec();
  const StoredCheckpoint resumed{task_.checkpoint, task_.record.job.checkpoint_step()};
  if (!resumed.within_job.empty()) {
    const absl::Status there = CheckCheckpoint(
        *tools_.checkpoints, CheckpointFolder(resumed.within_job), resumed.steps_done);
    if (MeansDamage(there)) return CheckpointDamaged(resumed, there);
    if (!there.ok()) return AttemptEnd::Failed(there);
  }
  if (std::optional<AttemptEnd> lost = CheckBestIsThere(); lost.has_value()) return *lost;
  if (task_.stream != nullptr && !task_.stream->status().ok()) {
    return AttemptEnd::Failed(task_.stream->status());
  }
  absl::StatusOr<PreparedJob> prepared =
      PrepareJob(*tools_.registry, *tools_.artifacts, *tools_.dataset_roots, spec);
  if (!prepared.ok()) return AttemptEnd::Failed(prepared.status());
  std::atomic<bool> over = false;
  std::thread digests([this, &over] { RecordDigests([&] { return over || stopping(); }); });
  const absl::Cleanup end_digests = [&] {
    over = true;
    if (digests.joinable()) digests.join();
  };
  {
    absl::MutexLock lock(&report_mutex_);
    merge_.SetFinishes(prepared->finishes);
  }
  if (!prepared->fused.empty() && task_.attempt == 1) {
    observer_->OnMessage(task_.record.job.id(), DetailMessage(DescribeFused(prepared->fused)));
  }
  pad_evaluation_ = prepared->pad_evaluation;
  PlanFacts facts;
  facts.parameters = prepared->parameters;
  facts.total_steps = prepared->total_steps;
  facts.tokens_per_step = prepared->tokens_per_step;
  CalibratedPlanner::Request request;
  request.graph = &prepared->graph;
  request.batch_size = spec.batch_size();
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const v1::Device& device = task_.members[r].device;
    *request.machine.devices.insert(request.machine.devices.end(), device);
    request.measure_on.emplace(device.model(), ranks_[r].client.get());
  }
  request.machine.communication = tools_.planner->Communication(request.machine.devices);
  request.machine.link = tools_.workers->MeasuredLink();
  if (request.machine.link.bandwidth() <= 0) request.machine.link = DefaultLink();
  request.optimizer = prepared->optimizer;
  request.keep_page_as = PlanPageBlob(task_.record.job.id());
  request.search = spec.search();
  const bool imported = request.search.strategy() == v1::SearchOptions::IMPORTED;
  const int planned = request.search.imported().devices_size();
  const int present = static_cast<int>(ranks_.size());
  if (request.search.has_imported() && task_.attempt > 1 &&
      (imported ? planned != present : planned > present)) {
    request.search.clear_imported();
    request.search.set_strategy(v1::SearchOptions::SEARCH);
    observer_->OnMessage(
        task_.record.job.id(),
        WarningMessage(absl::StrCat("the imported plan needs other workers than the ",
                                    ranks_.size(), " that are left; searching a new one")));
  }
  if (task_.attempt > 1 && request.search.pipeline_stages() > static_cast<int>(ranks_.size())) {
    request.search.clear_pipeline_stages();
    request.search.clear_micro_batches();
    observer_->OnMessage(
        task_.record.job.id(),
        WarningMessage(absl::StrCat("the pipeline needs more workers than the ", ranks_.size(),
                                    " that are left; searching a plan without stages")));
  }
  request.stop = [this] { return stopping(); };
  const WorkerMemory memory = MemoryOf(request.machine.devices);
  const auto too_few = [&](const absl::Status& status) {
    return absl::IsResourceExhausted(status) && IsLessInAny(memory, task_.enough);
  };
  const v1::Plan& before = task_.record.job.plan();
  absl::StatusOr<v1::Plan> plan = before;
  if (!CanKeepPlan(before, GraphFingerprint(prepared->graph), request.machine.devices)) {
    plan = tools_.planner->Make(request);
  }
  {
    absl::MutexLock lock(&mutex_);
    if (stop_) return AttemptEnd::Stopped();
  }
  if (too_few(plan.status())) {
    return AttemptEnd::TooFewWorkers(memory, task_.enough, plan.status());
  }
  if (!plan.ok()) return AttemptEnd::Failed(plan.status());
  LoweringOptions options;
  options.optimizer = prepared->optimizer;
  options.seed = spec.seed();
  options.columns = prepared->columns;
  options.max_literal_bytes = kMaxLiteralBytes;
  options.workspace = tools_.planner->workspace();
  options.evaluates = prepared->evaluates;
  absl::StatusOr<LoweredPlan> lowered =
      LowerPlan(*tools_.registry, prepared->graph, *plan, options);
  if (too_few(lowered.status())) {
    return AttemptEnd::TooFewWorkers(memory, task_.enough, lowered.status());
  }
  if (!lowered.ok()) return AttemptEnd::Failed(lowered.status());
  // Not earlier: the observer records the memory of these workers as sufficient.
  facts.plan = *plan;
  observer_->OnPlanned(task_.record.job.id(), task_.attempt, facts);
  if (lowered->training.size() != ranks_.size()) {
    return AttemptEnd::Failed(
        absl::InternalError(absl::StrCat("the plan was lowered to ", lowered->training.size(),
                                         " programs for ", ranks_.size(), " workers")));
  }

  if (!task_.checkpoint.empty() || prepared->init_folder.has_value()) {
    prepared->initial_values.clear();
  }
  absl::StatusOr<StoredValues> stored = StoredValues::Write(
      *tools_.data_folder,
      absl::StrCat(kCheckpointsFolder, "/", task_.record.job.id(), "/values-", task_.attempt),
      task_.record.job.id(), prepared->graph, prepared->initial_values);
  prepared->initial_values.clear();
  if (!stored.ok()) return AttemptEnd::Failed(stored.status());
  measure_communication_ = ranks_.size() > 1 && request.machine.communication == nullptr;
  tools_.rendezvous->Begin(task_.record.job.id(), static_cast<uint64_t>(task_.attempt));
  const absl::Time load_begin = absl::Now();
  std::optional<AttemptEnd> end =
      Load(*lowered, {prepared->init_folder.has_value()
                          ? tools_.data_folder->NameOf(prepared->init_folder->path())
                          : "",
                      stored->folder()});
  const absl::Duration loaded = absl::Now() - load_begin;
  stored->Remove();  // all ranks have read them, or will not
  if (!end.has_value()) {
    if (end = RecordAttempt(*plan, resumed.steps_done); end.has_value()) {
      StopRanks();
      tools_.rendezvous->End(task_.record.job.id());
      return *end;
    }
    observer_->OnRunning(task_.record.job.id(), task_.attempt);
    BeginSchedule(*prepared, resumed.steps_done, loaded);
    end = Train(*prepared, resumed.steps_done);
  } else {
    end = BlameCheckpoint(*std::move(end));
  }
  tools_.rendezvous->End(task_.record.job.id());
  if (end.has_value()) return *end;
  UnloadRanks();
  AttemptEnd finished = Finish(prepared->model);
  finished.stopped_early = steps_done_ < facts.total_steps;
  finished.evaluation_examples = prepared->evaluation_examples;
  finished.calibration = Calibrate(prepared->graph, *plan, lowered->training);
  if (finished.kind == AttemptEnd::kFinished) digests.join();
  return finished;
}

CalibratedPlanner::CalibrationReport Attempt::Calibrate(const Graph& graph, const v1::Plan& plan,
                                                        const std::vector<v1::Program>& programs) {
  const std::vector<v1::Device> devices = this->devices();
  CalibratedPlanner::Run run{&graph, &plan, &programs, &devices, {}};
  {
    absl::MutexLock lock(&report_mutex_);
    run.times = operator_times_;
  }
  return tools_.planner->RecordRun(run);
}

void Attempt::FailRank(size_t rank, const absl::Status& status) {
  ranks_[rank].status = status;
  ranks_[rank].done = true;
  if (!status.ok()) rank_failed_ = true;
  changed_.SignalAll();
}

std::optional<AttemptEnd> Attempt::Load(const LoweredPlan& lowered, const LoadFolders& folders) {
  graph_fingerprint_ = lowered.training[0].graph_fingerprint();
  const std::set<int> saving = SavingRanks(lowered.training);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].saves = saving.empty() || saving.contains(static_cast<int>(r));
  }
  {
    absl::MutexLock lock(&report_mutex_);
    merge_.SetSavingRanks(saving);
  }
  const std::vector<ShardPlaces> places =
      ChooseShardPlaces(task_.members, tools_.workers->Living(), task_.record.job.id());
  std::vector<v1::ShardSources> read(ranks_.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    threads.emplace_back([this, r, &lowered, &folders, &places, &read] {
      // A worker that survived a restart of the coordinator may still run the previous attempt.
      if (task_.attempt > 1) {
        v1::StopRequest stop;
        *stop.mutable_attempt() = AttemptMessage(r);
        stop.mutable_attempt()->set_attempt(static_cast<uint64_t>(task_.attempt) - 1);
        ranks_[r].client->Stop(stop, kStopTimeout).IgnoreError();
      }
      v1::LoadProgramRequest request;
      *request.mutable_attempt() = AttemptMessage(r);
      *request.mutable_program() = lowered.training[r];
      if (r < lowered.evaluation.size()) *request.mutable_evaluation() = lowered.evaluation[r];
      *request.mutable_dataset() = task_.record.job.spec().dataset();
      if (task_.record.job.spec().validation().has_dataset()) {
        *request.mutable_validation() = ValidationDataset(task_.record.job.spec());
      }
      request.set_batch_size(task_.record.job.spec().batch_size());
      if (!task_.checkpoint.empty()) {
        request.set_checkpoint_dir(CheckpointFolder(task_.checkpoint));
        request.mutable_shard_peers()->Assign(places[r].peers.begin(), places[r].peers.end());
      }
      if (places[r].keep_on.has_value()) *request.mutable_keep_shards_on() = *places[r].keep_on;
      request.set_init_folder(folders.init);
      request.set_values_folder(folders.values);
      request.set_peer_timeout_seconds(kPeerTimeoutSeconds);
      request.set_measure_communication(measure_communication_);
      request.set_pad_evaluation(pad_evaluation_);
      const absl::StatusOr<v1::LoadProgramReply> reply =
          ranks_[r].client->LoadProgram(request, kLoadTimeout);
      if (reply.ok()) {
        read[r] = reply->shards_read();
        recorded_[r].set_device_model(task_.members[r].device.model());
        recorded_[r].set_instruction_set(reply->instruction_set());
        recorded_[r].set_threads(reply->threads());
        recorded_[r].set_program_version(reply->program_version());
      }
      absl::MutexLock lock(&mutex_);
      FailRank(r, reply.status());
    });
  }
  {
    absl::MutexLock lock(&mutex_);
    auto all_done = [this] {
      mutex_.AssertHeld();
      return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.done; });
    };
    while (!all_done() && !stop_ && !rank_failed_) changed_.Wait(&mutex_);
    // Ranks connect to each other while they load. Without a stop, those that wait for a lost rank
    // would wait for the peer timeout.
    if (!all_done()) changed_.WaitWithTimeout(&mutex_, kRootCauseWait);
  }
  bool ended_early;
  {
    absl::MutexLock lock(&mutex_);
    ended_early = stop_ || rank_failed_;
  }
  if (ended_early) StopRanks();
  for (std::thread& thread : threads) thread.join();
  if (ended_early) return EndOfRanks();
  if (const std::string sources = DescribeShardSources(read); !sources.empty()) {
    observer_->OnMessage(task_.record.job.id(), DetailMessage(sources));
  }
  return std::nullopt;
}

void Attempt::UnloadRanks() {
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    threads.emplace_back([this, r] {
      v1::StopRequest request;
      *request.mutable_attempt() = AttemptMessage(r);
      ranks_[r].client->Stop(request, kStopTimeout).IgnoreError();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Attempt::StopRanks() {
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    threads.emplace_back([this, r] {
      v1::StopRequest request;
      *request.mutable_attempt() = AttemptMessage(r);
      absl::Status status = ranks_[r].client->Stop(request, kStopTimeout);
      if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return;
      // It does not answer Stop, or still computes. It gets no work until it has joined again,
      // which it does once it is free.
      tools_.workers->Suspect(task_.members[r].lease);
      absl::MutexLock lock(&mutex_);
      if (!ranks_[r].lost.empty()) return;
      ranks_[r].lost =
          absl::IsUnavailable(status)
              ? "does not answer"
              : absl::StrCat("has not stopped within ", absl::FormatDuration(kStopTimeout));
    });
  }
  for (std::thread& thread : threads) thread.join();
  absl::MutexLock lock(&mutex_);
  const absl::Time deadline = absl::Now() + kDrainWait;
  auto all_done = [this] {
    mutex_.AssertHeld();
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& r) { return r.done || !r.lost.empty(); });
  };
  while (!all_done() && absl::Now() < deadline) changed_.WaitWithDeadline(&mutex_, deadline);
  for (Rank& rank : ranks_) rank.client->Cancel();
}

AttemptEnd Attempt::EndOfRanks() {
  absl::MutexLock lock(&mutex_);
  if (stop_) return AttemptEnd::Stopped();
  AttemptEnd end;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (IsJobError(ranks_[r].status.code())) {
      end.kind = AttemptEnd::kFailed;
      end.reason = absl::StrCat(Describe(r), ": ", ranks_[r].status.message());
      return end;
    }
  }
  std::vector<std::string> lost, failed, broken;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const absl::Status& status = ranks_[r].status;
    if (!ranks_[r].lost.empty()) {
      lost.push_back(absl::StrCat(Describe(r), " lost: ", ranks_[r].lost));
    } else if (IsWorkerLoss(status.code())) {
      failed.push_back(absl::StrCat(Describe(r), ": ", status.message()));
      if (const std::optional<size_t> peer = ranks_[r].unreachable) {
        absl::StrAppend(&failed.back(), " (rank ", *peer, " is ", Describe(*peer), ")");
        end.cut_off.emplace_back(task_.members[r], task_.members[*peer]);
      }
    } else if (!status.ok()) {
      broken.push_back(absl::StrCat(Describe(r), ": ", status.ToString()));
    }
  }
  // The death of a peer may fail a rank with any code. Without one, an internal error ends the job.
  if (lost.empty() && failed.empty()) {
    end.kind = AttemptEnd::kFailed;
    end.reason = absl::StrJoin(broken, "; ");
    return end;
  }
  end.kind = AttemptEnd::kWorkersLost;
  end.reason = absl::StrJoin(lost.empty() ? failed : lost, "; ");
  return end;
}

void Attempt::OnEvent(size_t rank, const v1::RunEvent& event) {
  // Reject reports under an old lease: their worker was declared dead.
  std::string lost;
  absl::Status lease = tools_.workers->Check(task_.members[rank].lease);
  if (!lease.ok()) {
    lost = std::string(lease.message());
  } else if (event.attempt().attempt() != static_cast<uint64_t>(task_.attempt) ||
             event.attempt().worker_epoch() != task_.members[rank].lease.epoch()) {
    lost = "it reports for another attempt or under another lease";
  }
  absl::MutexLock report_lock(&report_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    if (lost.empty() && event.event_case() == v1::RunEvent::kUnreachableRank) {
      const auto peer = static_cast<size_t>(event.unreachable_rank());
      if (peer < ranks_.size() && peer != rank) ranks_[rank].unreachable = peer;
      return;
    }
    if (stop_ || rank_failed_) return;
    if (!lost.empty()) {
      ranks_[rank].lost = lost;
      ranks_[rank].client->Cancel();
      rank_failed_ = true;
      changed_.SignalAll();
      return;
    }
  }
  absl::Status status = HandleEvent(rank, event);
  if (status.ok()) return;
  absl::MutexLock lock(&mutex_);
  ranks_[rank].status = status;
  rank_failed_ = true;
  changed_.SignalAll();
}

absl::Status Attempt::HandleEvent(size_t rank, const v1::RunEvent& event) {
  const std::string& job_id = task_.record.job.id();
  switch (event.event_case()) {
    case v1::RunEvent::kStep: {
      auto merged = merge_.AddStep(static_cast<int>(rank), event.step());
      if (!merged.ok()) return merged.status();
      if (!merged->has_value()) return absl::OkStatus();
      ScheduleStep(**merged);
      observer_->OnStep(job_id, task_.attempt, **merged);
      return absl::OkStatus();
    }
    case v1::RunEvent::kShard: {
      auto complete = merge_.AddShard(static_cast<int>(rank), event.shard());
      if (!complete.ok()) return complete.status();
      if (!complete->has_value()) return absl::OkStatus();
      const RankReportMerger::Checkpoint& checkpoint = **complete;
      ScheduleCost(checkpoint);
      if (checkpoint.steps_done <= checkpoint_.steps_done) return absl::OkStatus();
      if (!checkpoint.not_written.empty()) {
        SkipCheckpoint(checkpoint, checkpoint.not_written);
        return absl::OkStatus();
      }
      Manifest manifest;
      manifest.job_id = job_id;
      manifest.steps_done = checkpoint.steps_done;
      manifest.graph_fingerprint = graph_fingerprint_;
      manifest.files = checkpoint.files;
      absl::Status status = WriteManifest(*tools_.checkpoints, checkpoint.directory, manifest);
      if (absl::IsResourceExhausted(status)) {
        SkipCheckpoint(checkpoint, std::string(status.message()));
        return absl::OkStatus();
      }
      if (!status.ok()) return status;
      checkpoint_ = {CheckpointWithinJob(checkpoint.directory), checkpoint.steps_done};
      observer_->OnCheckpoint(job_id, task_.attempt, checkpoint_);
      return absl::OkStatus();
    }
    case v1::RunEvent::kEvaluation: {
      auto merged = merge_.AddEvaluation(static_cast<int>(rank), event.evaluation());
      if (merged.has_value()) evaluation_ = *std::move(merged);
      return absl::OkStatus();
    }
    case v1::RunEvent::kMeasuredPeakBytes: {
      absl::MutexLock lock(&mutex_);
      ranks_[rank].peak_bytes = event.measured_peak_bytes();
      return absl::OkStatus();
    }
    case v1::RunEvent::kCommunication: {
      const std::string left_out =
          tools_.planner->RecordCommunication(devices(), event.communication());
      if (!left_out.empty()) observer_->OnMessage(job_id, DetailMessage(left_out));
      return absl::OkStatus();
    }
    case v1::RunEvent::kOperatorTimes: {
      operator_times_.resize(ranks_.size());
      operator_times_[rank].clear();
      for (const v1::OperatorTimes::Entry& entry : event.operator_times().entries()) {
        operator_times_[rank].push_back({entry.node(), entry.op(), entry.seconds()});
      }
      return absl::OkStatus();
    }
    case v1::RunEvent::kUnreachableRank:  // OnEvent
    case v1::RunEvent::kProbes:           // of replays
    case v1::RunEvent::kHashes:
    case v1::RunEvent::EVENT_NOT_SET:
      break;
  }
  return absl::OkStatus();
}

}  // namespace espalier
