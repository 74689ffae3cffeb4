#include "worker/training_job.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/checkpoint.h"
#include "worker/collective/measure_communication.h"
#include "worker/operator_times.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

constexpr absl::Duration kDefaultPeerTimeout = absl::Seconds(60);
constexpr uint64_t kLinkTag = ~uint64_t{0};  // not used by the planner
constexpr int64_t kLinkBytes = 4 << 20;
// Steps within a run that are timed; the first ones are atypical.
constexpr int64_t kFirstTimedStep = 5;
constexpr int64_t kTimedSteps = 3;

bool IsSaved(const Executor& executor, int i) {
  const v1::BufferKind kind = executor.buffer(i).kind();
  return (kind == v1::PARAMETER_SHARD || kind == v1::OPTIMIZER_STATE) && !executor.is_alias(i);
}

class ExecutorSource : public CheckpointSource {
 public:
  ExecutorSource(Executor& executor, std::vector<int> buffers)
      : executor_(executor), buffers_(std::move(buffers)) {}
  absl::Status Read(int entry, std::vector<char>* bytes) override {
    return executor_.ReadBuffer(buffers_[entry], bytes->data(),
                                static_cast<int64_t>(bytes->size()));
  }

 private:
  Executor& executor_;
  const std::vector<int> buffers_;
};

}  // namespace

TrainingJob::TrainingJob(const v1::LoadProgramRequest& request, const TrainingJobOptions& options)
    : options_(options),
      attempt_(request.attempt()),
      peer_timeout_(request.peer_timeout_seconds() > 0
                        ? absl::Seconds(request.peer_timeout_seconds())
                        : kDefaultPeerTimeout),
      measure_communication_(request.measure_communication()) {}

absl::StatusOr<std::unique_ptr<TrainingJob>> TrainingJob::Load(
    const v1::LoadProgramRequest& request, const TrainingJobOptions& options) {
  std::unique_ptr<TrainingJob> job(new TrainingJob(request, options));
  absl::StatusOr<std::shared_ptr<const Dataset>> dataset = options.open_dataset(request.dataset());
  if (!dataset.ok()) return dataset.status();
  BatchLoaderOptions data;
  data.batch_size = request.batch_size();
  data.seed = request.program().seed();
  absl::StatusOr<std::unique_ptr<BatchLoader>> loader = BatchLoader::Create(*dataset, data);
  if (!loader.ok()) return loader.status();
  job->training_data_ = *std::move(loader);

  ExecutorOptions executor;
  executor.device = options.device;
  executor.source = job->training_data_.get();
  absl::StatusOr<std::unique_ptr<Executor>> training =
      Executor::Create(request.program(), executor);
  if (!training.ok()) return training.status();
  job->training_ = *std::move(training);

  if (request.has_evaluation() && (*dataset)->holdout_examples() > 0) {
    data.holdout = true;
    absl::StatusOr<std::unique_ptr<BatchLoader>> holdout = BatchLoader::Create(*dataset, data);
    if (!holdout.ok()) return holdout.status();
    job->holdout_data_ = *std::move(holdout);
    executor.source = job->holdout_data_.get();
    executor.training = false;
    executor.share_parameters = job->training_.get();
    absl::StatusOr<std::unique_ptr<Executor>> evaluation =
        Executor::Create(request.evaluation(), executor);
    if (!evaluation.ok()) return evaluation.status();
    job->evaluation_ = *std::move(evaluation);
  }
  if (!request.checkpoint_dir().empty()) {
    if (absl::Status s = job->LoadCheckpoint(request.checkpoint_dir()); !s.ok()) return s;
  } else if (!request.init_folder().empty()) {
    // The coordinator has validated the folder against the whole model; this rank may hold a shard.
    WeightMap by_name;
    by_name.ignored = {""};
    absl::Status s = LoadWeights(request.init_folder(), by_name, *job->training_);
    if (!s.ok()) return s;
  }
  return job;
}

absl::Status TrainingJob::LoadCheckpoint(const std::string& directory) {
  absl::StatusOr<std::unique_ptr<CheckpointReader>> reader =
      CheckpointReader::Open(*options_.files, directory);
  if (!reader.ok()) return reader.status();
  std::vector<char> bytes;
  for (int i = 0; i < training_->num_buffers(); ++i) {
    if (!IsSaved(*training_, i)) continue;
    if (options_.cancelled && options_.cancelled()) {
      return absl::CancelledError("stopped while loading");
    }
    const TensorSpec& spec = training_->spec(i);
    bytes.resize(static_cast<size_t>(spec.bytes()));
    absl::Status s = (*reader)->Read(training_->tensor_name(i), spec, bytes.data());
    if (s.ok()) s = training_->WriteBuffer(i, bytes.data(), spec.bytes());
    if (!s.ok()) {
      return absl::Status(s.code(),
                          absl::StrCat("checkpoint '", directory, "': ", std::string(s.message())));
    }
  }
  steps_loaded_ = (*reader)->manifest().steps_done;
  return (*reader)->Verify();
}

int64_t TrainingJob::training_examples() const { return training_data_->training_examples(); }

int64_t TrainingJob::measured_peak_bytes() const {
  return training_->measured_peak_bytes() +
         (evaluation_ != nullptr ? evaluation_->measured_peak_bytes() : 0);
}

absl::Status TrainingJob::Cancelled() {
  absl::MutexLock lock(&mutex_);
  return aborted_ ? absl::CancelledError(reason_) : absl::OkStatus();
}

void TrainingJob::Abort(const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  if (!aborted_) reason_ = reason;
  aborted_ = true;
  if (communicator_ != nullptr) communicator_->Abort(reason);
}

std::unique_ptr<Communicator> TrainingJob::TakeCommunicator() {
  training_->SetCommunicator(nullptr);
  if (evaluation_ != nullptr) evaluation_->SetCommunicator(nullptr);
  absl::MutexLock lock(&mutex_);
  return std::move(communicator_);
}

bool TrainingJob::has_link() const {
  absl::MutexLock lock(&mutex_);
  return has_link_;
}

v1::Link TrainingJob::link() const {
  absl::MutexLock lock(&mutex_);
  return link_;
}

absl::Status TrainingJob::Connect(bool* met) {
  *met = false;
  const v1::Program& program = training_->program();
  {
    absl::MutexLock lock(&mutex_);
    if (program.world_size() == 1 || communicator_ != nullptr) return absl::OkStatus();
  }
  // All ranks have loaded before the first Run, so they connect at once unless something is wrong.
  const absl::Duration soon = std::min(peer_timeout_, kMaxConnectTimeout);
  absl::StatusOr<std::unique_ptr<Communicator>> made = options_.connect(
      program.rank(), program.world_size(), PeerTimeouts{soon, soon, peer_timeout_},
      [this] { return !Cancelled().ok(); });
  if (absl::Status s = Cancelled(); !s.ok()) return s;
  if (!made.ok()) return made.status();
  {
    absl::MutexLock lock(&mutex_);
    communicator_ = *std::move(made);
    if (aborted_) communicator_->Abort(reason_);
    training_->SetCommunicator(communicator_.get());
    if (evaluation_ != nullptr) evaluation_->SetCommunicator(communicator_.get());
  }
  *met = true;
  return MeasureLink();
}

absl::Status TrainingJob::ReportCommunication(
    const std::function<absl::Status(const v1::RunEvent&)>& emit) {
  Communicator* communicator = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    communicator = communicator_.get();
  }
  absl::StatusOr<v1::CommunicationProfile> profile =
      MeasureCommunication(*communicator, *options_.device, {.tag = kLinkTag});
  if (!profile.ok()) return profile.status();
  if (communicator->rank() != 0) return absl::OkStatus();
  v1::RunEvent event;
  *event.mutable_communication() = *std::move(profile);
  return emit(event);
}

// Ping-pong between ranks 0 and 1, which gives the planner's link model latency and bandwidth.
absl::Status TrainingJob::MeasureLink() {
  const v1::Program& program = training_->program();
  Communicator* communicator = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    communicator = communicator_.get();
  }
  if (program.rank() > 1 || communicator->on_device()) return absl::OkStatus();
  const int peer = 1 - program.rank();
  std::vector<char> message(kLinkBytes);
  auto round_trip = [&](int64_t bytes) -> absl::StatusOr<double> {
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
      const absl::Time start = absl::Now();
      absl::Status s;
      for (int turn = 0; turn < 2 && s.ok(); ++turn) {
        s = turn == program.rank() ? communicator->Send(message.data(), bytes, peer, kLinkTag)
                                   : communicator->Receive(message.data(), bytes, peer, kLinkTag);
      }
      if (s.ok()) s = communicator->Flush();
      if (!s.ok()) return s;
      best = std::min(best, absl::ToDoubleSeconds(absl::Now() - start));
    }
    return best;
  };
  absl::StatusOr<double> small = round_trip(8);
  if (!small.ok()) return small.status();
  absl::StatusOr<double> large = round_trip(kLinkBytes);
  if (!large.ok()) return large.status();
  absl::MutexLock lock(&mutex_);
  has_link_ = true;
  link_.set_latency_seconds(*small / 2);
  link_.set_bandwidth(2.0 * kLinkBytes / std::max(1e-9, *large - *small));
  return absl::OkStatus();
}

absl::Status TrainingJob::WriteShard(const v1::RunRequest& request, int64_t steps_done,
                                     const std::function<absl::Status(const v1::RunEvent&)>& emit) {
  std::vector<CheckpointEntry> entries;
  std::vector<int> buffers;
  std::set<std::pair<std::string, Dims>> regions;
  for (int i = 0; i < training_->num_buffers(); ++i) {
    if (!IsSaved(*training_, i)) continue;
    if (training_->buffer(i).saved_elsewhere()) continue;
    const TensorSpec& spec = training_->spec(i);
    // Replicas on one rank hold equal values: save one.
    if (!regions.insert({training_->tensor_name(i), spec.offset}).second) continue;
    entries.push_back(
        {training_->tensor_name(i), spec, training_->buffer(i).kind() == v1::OPTIMIZER_STATE});
    buffers.push_back(i);
  }
  // One directory per attempt, so that a stale attempt cannot overwrite a newer one's files.
  const std::string directory =
      JoinPath(request.checkpoint_root(),
               absl::StrCat("step-", steps_done, "-attempt-", attempt_.attempt()));
  ExecutorSource source(*training_, buffers);
  absl::StatusOr<ManifestFile> file = WriteCheckpointShard(
      *options_.files, directory, training_->program().rank(), entries, source);
  if (!file.ok()) {
    return absl::Status(file.status().code(),
                        absl::StrCat("checkpoint after step ", steps_done, ": ",
                                     std::string(file.status().message())));
  }
  v1::RunEvent event;
  v1::CheckpointShard* shard = event.mutable_shard();
  shard->set_steps_done(steps_done);
  shard->set_directory(directory);
  shard->set_file(file->name);
  shard->set_sha256(file->sha256);
  shard->set_bytes(file->bytes);
  return emit(event);
}

absl::Status TrainingJob::Evaluate(const v1::RunRequest& request,
                                   const std::function<absl::Status(const v1::RunEvent&)>& emit) {
  if (evaluation_ == nullptr) {
    return absl::FailedPreconditionError(
        "evaluation was asked for, but the job has no program or no held-out examples for it");
  }
  const absl::Time start = absl::Now();
  const int64_t batches = holdout_data_->steps_per_epoch();
  std::map<std::string, double> sums;
  for (int64_t batch = 0; batch < batches; ++batch) {
    if (absl::Status s = Cancelled(); !s.ok()) return s;
    absl::StatusOr<StepResult> result = evaluation_->Step(batch);
    if (!result.ok()) {
      return absl::Status(result.status().code(),
                          absl::StrCat("evaluation: ", std::string(result.status().message())));
    }
    for (const auto& [name, value] : result->values) sums[name] += value;
  }
  v1::RunEvent event;
  event.mutable_evaluation()->set_step(request.last_step());
  event.mutable_evaluation()->set_seconds(absl::ToDoubleSeconds(absl::Now() - start));
  for (const auto& [name, sum] : sums) {
    (*event.mutable_evaluation()->mutable_values())[name] = sum / static_cast<double>(batches);
  }
  return emit(event);
}

absl::Status TrainingJob::Run(const v1::RunRequest& request,
                              const std::function<absl::Status(const v1::RunEvent&)>& emit) {
  if (request.first_step() < 0 || request.last_step() < request.first_step() ||
      request.checkpoint_every_steps() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps [", request.first_step(), ", ", request.last_step(),
                     ") with a checkpoint every ", request.checkpoint_every_steps()));
  }
  if (steps_loaded_ >= 0 && request.first_step() != steps_loaded_) {
    return absl::DataLossError(absl::StrCat(
        steps_loaded_ > 0 ? "the checkpoint is of step "
                          : "without a checkpoint a run begins at step ",
        steps_loaded_, ", but this one is to go on from step ", request.first_step(),
        ": the coordinator's record and its checkpoints do not belong together; submit the job "
        "again if they cannot be restored"));
  }
  steps_loaded_ = -1;  // later Runs continue
  if (absl::Status s = Cancelled(); !s.ok()) return s;
  bool met = false;
  if (absl::Status s = Connect(&met); !s.ok()) return s;
  if (met && measure_communication_) {
    if (absl::Status s = ReportCommunication(emit); !s.ok()) return s;
  }
  const int64_t every = request.checkpoint_every_steps();
  std::vector<std::vector<InstructionTime>> profiles;
  for (int64_t step = request.first_step(); step < request.last_step(); ++step) {
    if (absl::Status s = Cancelled(); !s.ok()) return s;
    const int64_t done_here = step - request.first_step();
    const bool timed = done_here >= kFirstTimedStep && done_here < kFirstTimedStep + kTimedSteps;
    const absl::Time start = absl::Now();
    absl::StatusOr<StepResult> result = training_->Step(step, timed);
    if (!result.ok()) {
      if (absl::Status s = Cancelled(); !s.ok()) return s;
      return result.status();
    }
    v1::RunEvent event;
    v1::StepReport* report = event.mutable_step();
    report->set_step(step);
    report->set_seconds(absl::ToDoubleSeconds(absl::Now() - start));
    for (const auto& [name, value] : result->values) (*report->mutable_values())[name] = value;
    // Values are summed over ranks, so only one reports it.
    if (training_->program().rank() == 0) {
      (*report->mutable_values())["learning_rate"] = result->learning_rate;
    }
    if (absl::Status s = emit(event); !s.ok()) return s;
    if (timed) profiles.push_back(std::move(result->profile));
    if (profiles.size() == kTimedSteps) {
      v1::RunEvent times;
      *times.mutable_operator_times() = MedianStepTimes(profiles);
      profiles.clear();
      if (absl::Status s = emit(times); !s.ok()) return s;
    }
    const int64_t done = step + 1;
    const bool due = done == request.last_step() || (every > 0 && done % every == 0);
    if (due && !request.checkpoint_root().empty()) {
      if (absl::Status s = WriteShard(request, done, emit); !s.ok()) return s;
    }
  }
  if (request.evaluate_at_end()) {
    if (absl::Status s = Evaluate(request, emit); !s.ok()) return s;
  }
  Communicator* communicator = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    communicator = communicator_.get();
  }
  if (communicator != nullptr) {
    if (absl::Status s = communicator->Flush(); !s.ok()) return s;
  }
  v1::RunEvent event;
  event.set_measured_peak_bytes(measured_peak_bytes());
  return emit(event);
}

}  // namespace espalier
