#include "worker/training_job.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "storage/checkpoint.h"
#include "worker/collective/unreachable_rank.h"
#include "worker/initial_values.h"
#include "worker/trainer/checkpoint_observer.h"
#include "worker/trainer/evaluation_observer.h"
#include "worker/trainer/hash_observer.h"
#include "worker/trainer/link_measurement.h"
#include "worker/trainer/probe_observer.h"
#include "worker/trainer/trainer.h"

namespace espalier {
namespace {

constexpr absl::Duration kDefaultPeerTimeout = absl::Seconds(60);

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
  BatchLoaderOptions data;
  data.batch_size = request.batch_size();
  data.seed = request.program().seed();
  if (request.dataset().has_shuffle()) data.shuffle = request.dataset().shuffle();
  absl::StatusOr<std::shared_ptr<const Dataset>> dataset = job->OpenTrainingData(request, data);
  if (!dataset.ok()) return dataset.status();

  ExecutorOptions executor;
  executor.device = options.device;
  executor.source = job->training_data_.get();
  executor.fills_stored = true;
  absl::StatusOr<std::unique_ptr<Executor>> training =
      Executor::Create(request.program(), executor);
  if (!training.ok()) return training.status();
  job->training_ = *std::move(training);
  job->shard_writer_ = std::make_unique<ShardWriter>(
      ShardWriterOptions{&options.storage->checkpoints(), job->training_.get(), options.device});

  absl::StatusOr<std::shared_ptr<const Dataset>> evaluated = *dataset;
  if (request.has_validation()) {
    v1::Dataset whole = request.validation();
    whole.set_holdout_fraction(1);
    evaluated = options.open_dataset(whole);
    if (!evaluated.ok()) return evaluated.status();
  }
  if (request.has_evaluation() && *evaluated != nullptr && (*evaluated)->holdout_examples() > 0) {
    data.holdout = true;
    data.pad_holdout = request.pad_evaluation();
    absl::StatusOr<std::unique_ptr<BatchLoader>> holdout = BatchLoader::Create(*evaluated, data);
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
  if (absl::Status s = job->MakeProbes(request); !s.ok()) return s;
  absl::Status s = LoadInitialValues(*options.storage, request, options.cancelled, *job->training_,
                                     job->evaluation_.get());
  if (s.ok() && !request.checkpoint_dir().empty())
    s = job->LoadCheckpoint(request.checkpoint_dir());
  if (!s.ok()) return s;
  return job;
}

absl::Status TrainingJob::MakeProbes(const v1::LoadProgramRequest& request) {
  const auto make = [](Executor* executor, const ProbeReader::Probes& probes,
                       std::unique_ptr<ProbeReader>* made) {
    if (executor == nullptr || probes.empty()) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<ProbeReader>> reader = ProbeReader::Create(executor, probes);
    if (reader.ok()) *made = *std::move(reader);
    return reader.status();
  };
  absl::Status s = make(training_.get(), request.probes(), &probes_);
  if (!s.ok()) return s;
  return make(evaluation_.get(), request.evaluation_probes(), &evaluation_probes_);
}

absl::StatusOr<std::shared_ptr<const Dataset>> TrainingJob::OpenTrainingData(
    const v1::LoadProgramRequest& request, const BatchLoaderOptions& data) {
  if (request.dataset().format() == v1::Dataset::STREAM) {
    auto stream = std::make_unique<StreamSource>(
        data.batch_size,
        [storage = options_.storage](
            const std::string& path) -> absl::StatusOr<std::shared_ptr<const Dataset>> {
          const absl::StatusOr<std::string> npz =
              ReadObject(storage->inputs(), path, kMaxDatasetBytes);
          if (!npz.ok()) return npz.status();
          return Dataset::FromNpz(*npz, /*holdout_fraction=*/0);
        });
    stream_ = stream.get();
    training_data_ = std::move(stream);
    return nullptr;
  }
  absl::StatusOr<std::shared_ptr<const Dataset>> dataset = options_.open_dataset(request.dataset());
  if (!dataset.ok()) return dataset.status();
  absl::StatusOr<std::unique_ptr<BatchLoader>> loader = BatchLoader::Create(*dataset, data);
  if (!loader.ok()) return loader.status();
  training_examples_ = (*loader)->training_examples();
  training_data_ = *std::move(loader);
  return dataset;
}

absl::Status TrainingJob::LoadCheckpoint(const std::string& directory) {
  absl::Status status = ReadCheckpoint(directory);
  CopiedShardsStore* const copies = options_.storage->copies();
  if (copies == nullptr) return status;
  if (!status.ok() && !absl::IsCancelled(status) && copies->Distrust()) {
    spdlog::warn("copies of shards cannot be used, so only the checkpoint store is read: {}",
                 absl::Utf8SafeCHexEscape(status.message()));
    status = ReadCheckpoint(directory);
  }
  shards_read_ = copies->sources();
  return status;
}

absl::Status TrainingJob::ReadCheckpoint(const std::string& directory) {
  absl::StatusOr<std::unique_ptr<CheckpointReader>> reader =
      CheckpointReader::Open(options_.storage->checkpoints(), directory);
  if (!reader.ok()) return reader.status();
  std::vector<char> bytes;
  for (int i = 0; i < training_->num_buffers(); ++i) {
    if (!IsCheckpointed(*training_, i)) continue;
    if (absl::Status s = peers_.Cancelled(); !s.ok()) return s;
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

absl::Status TrainingJob::RestoreCheckpoint(const v1::RunRequest& request) {
  if (shard_writer_->has_shared()) {
    return absl::FailedPreconditionError(
        "a checkpoint is to be restored where some were written: those to come would name the "
        "unchanged values of these");
  }
  // The run's thread may not have used the device yet.
  absl::Status status = options_.device->EnterThread(KernelThreads::kOpenMp);
  if (status.ok()) status = LoadCheckpoint(request.restore_checkpoint());
  if (!status.ok()) return status;
  if (steps_loaded_ != request.first_step()) {
    return absl::DataLossError(absl::StrCat("checkpoint '", request.restore_checkpoint(),
                                            "' is of step ", steps_loaded_, ", not of step ",
                                            request.first_step(), ", as the coordinator says"));
  }
  requested_checkpoints_.Take(steps_loaded_);
  return absl::OkStatus();
}

int64_t TrainingJob::measured_peak_bytes() const {
  return training_->measured_peak_bytes() +
         (evaluation_ != nullptr ? evaluation_->measured_peak_bytes() : 0);
}

void TrainingJob::Abort(const std::string& reason) {
  options_.storage->Cancel();
  peers_.Abort(reason);
}

std::unique_ptr<Communicator> TrainingJob::TakeCommunicator() {
  training_->SetCommunicator(nullptr);
  if (evaluation_ != nullptr) evaluation_->SetCommunicator(nullptr);
  return peers_.Take();
}

bool TrainingJob::has_link() const {
  absl::MutexLock lock(&mutex_);
  return has_link_;
}

void TrainingJob::SetLink(const v1::Link& link) {
  absl::MutexLock lock(&mutex_);
  has_link_ = true;
  link_ = link;
}

v1::Link TrainingJob::link() const {
  absl::MutexLock lock(&mutex_);
  return link_;
}

absl::Status TrainingJob::Connect(bool* met) {
  *met = false;
  const v1::Program& program = training_->program();
  if (program.world_size() == 1) return absl::OkStatus();
  // All ranks have loaded before the first Run, so they connect at once unless something is wrong.
  const absl::Duration soon = std::min(peer_timeout_, kMaxConnectTimeout);
  const absl::StatusOr<bool> connected = peers_.Connect([&](std::function<bool()> cancelled) {
    return options_.connect(program.rank(), program.world_size(),
                            PeerTimeouts{soon, soon, peer_timeout_}, std::move(cancelled));
  });
  if (!connected.ok()) return connected.status();
  training_->SetCommunicator(peers_.communicator());
  if (evaluation_ != nullptr) evaluation_->SetCommunicator(peers_.communicator());
  *met = *connected;
  return absl::OkStatus();
}

absl::Status TrainingJob::Run(const v1::RunRequest& request,
                              const std::function<absl::Status(const v1::RunEvent&)>& emit) {
  if (request.first_step() < 0 || request.last_step() < request.first_step() ||
      request.checkpoint_every_steps() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps [", request.first_step(), ", ", request.last_step(),
                     ") with a checkpoint every ", request.checkpoint_every_steps()));
  }
  if (absl::Status s = peers_.Cancelled(); !s.ok()) return s;
  if (!request.restore_checkpoint().empty()) {
    if (absl::Status s = RestoreCheckpoint(request); !s.ok()) return s;
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
  if (stream_ != nullptr) {
    std::vector<StreamSource::Part> parts;
    for (const v1::StreamPart& part : request.stream()) {
      parts.push_back({part.first_step(), part.end_step(), part.path()});
    }
    stream_->SetParts(std::move(parts));
  }
  bool met = false;
  absl::Status status = Connect(&met);
  if (status.ok()) status = Train(request, met, emit);
  v1::RunEvent event;
  if (const std::optional<int> peer = UnreachableRank(status)) {
    event.set_unreachable_rank(*peer);
    emit(event).IgnoreError();  // the run ends with what it is about
  }
  if (!status.ok()) return status;
  event.set_measured_peak_bytes(measured_peak_bytes());
  return emit(event);
}

absl::Status TrainingJob::Train(const v1::RunRequest& request, bool met,
                                const std::function<absl::Status(const v1::RunEvent&)>& emit) {
  TrainerOptions options;
  options.executor = training_.get();
  options.communicator = peers_.communicator();
  options.begin = request.first_step();
  options.end = request.last_step();
  options.emit = emit;
  options.check_not_stopped = [this] { return peers_.Cancelled(); };

  LinkMeasurement link({options.communicator, options_.device, measure_communication_,
                        [this](const v1::Link& measured) { SetLink(measured); }});
  CheckpointObserver checkpoint({shard_writer_.get(), request.checkpoint_root(),
                                 request.checkpoint_every_steps(), attempt_.attempt(),
                                 request.checkpoint_at_begin(), request.goes_on(),
                                 &requested_checkpoints_});
  EvaluationObserver evaluation(evaluation_.get(),
                                evaluation_ != nullptr ? holdout_data_->steps_per_epoch() : 0,
                                evaluation_probes_.get());
  std::optional<ProbeObserver> probes;
  if (probes_ != nullptr && request.has_probe_steps()) {
    options.observers.push_back(&probes.emplace(probes_.get(), request.probe_steps()));
  }
  std::optional<HashObserver> hashes;
  if (request.has_hash_step()) {
    if (probes.has_value()) {
      return absl::InvalidArgumentError("a run reads probes or hashes, not both");
    }
    options.observers.push_back(&hashes.emplace(training_.get(), request.hash_step()));
  }
  if (met) options.observers.push_back(&link);
  options.observers.push_back(&timing_);
  options.observers.push_back(&checkpoint);
  if (request.evaluate_at_end()) options.observers.push_back(&evaluation);
  return Trainer(std::move(options)).Run();
}

}  // namespace espalier
