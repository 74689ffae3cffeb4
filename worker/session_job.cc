#include "worker/session_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ops/graph/graph_proto.h"
#include "worker/initial_values.h"
#include "worker/trainer/shard_writer.h"

namespace espalier {
namespace {

constexpr absl::Duration kDefaultPeerTimeout = absl::Seconds(60);
constexpr int64_t kBytesPerMessage = 8 << 20;
constexpr int kStepsPerMessage = 4096;

// Returns "logits" for "logits#2", if there is a "logits".
std::string OutputOf(const v1::Program& program, const std::string& name) {
  const size_t mark = name.rfind('#');
  int64_t number = 0;
  const bool numbered =
      mark != std::string::npos && absl::SimpleAtoi(name.substr(mark + 1), &number);
  return numbered && program.outputs().contains(name.substr(0, mark)) ? name.substr(0, mark) : name;
}

std::vector<Column> ColumnsOf(v1::RankCommand* command) {
  std::vector<Column> columns;
  for (v1::TensorPart& part : *command->mutable_columns()) {
    Column column;
    column.name = part.name();
    column.example.dtype = FromProto(part.dtype());
    column.example.dims.assign(part.dims().begin() + std::min(1, part.dims_size()),
                               part.dims().end());
    column.data.assign(part.data().begin(), part.data().end());
    columns.push_back(std::move(column));
  }
  return columns;
}

}  // namespace

SessionJob::SessionJob(const v1::LoadProgramRequest& request, const TrainingJobOptions& options)
    : options_(options),
      borders_(request.session()),
      peer_timeout_(request.peer_timeout_seconds() > 0
                        ? absl::Seconds(request.peer_timeout_seconds())
                        : kDefaultPeerTimeout) {}

absl::StatusOr<std::unique_ptr<SessionJob>> SessionJob::Load(const v1::LoadProgramRequest& request,
                                                             const TrainingJobOptions& options) {
  if (!request.has_evaluation() || !request.checkpoint_dir().empty()) {
    return absl::InvalidArgumentError("a session has an evaluation program and no checkpoint_dir");
  }
  std::unique_ptr<SessionJob> job(new SessionJob(request, options));
  SessionSourceOptions data;
  if (!request.dataset().uri().empty()) {
    absl::StatusOr<std::shared_ptr<const Dataset>> dataset =
        options.open_dataset(request.dataset());
    if (!dataset.ok()) return dataset.status();
    data.dataset = *std::move(dataset);
  }
  data.batch_size = request.batch_size();
  data.seed = request.program().seed();
  if (request.dataset().has_shuffle()) data.shuffle = request.dataset().shuffle();
  ExecutorOptions executor;
  executor.device = options.device;
  executor.fills_stored = true;
  for (const bool evaluation : {false, true}) {
    data.evaluation = evaluation;
    data.pad = evaluation && request.pad_evaluation();
    absl::StatusOr<std::unique_ptr<SessionSource>> source = SessionSource::Create(data);
    if (!source.ok()) return source.status();
    executor.source = source->get();
    executor.training = !evaluation;
    executor.share_parameters = job->training_.get();
    absl::StatusOr<std::unique_ptr<Executor>> made =
        Executor::Create(evaluation ? request.evaluation() : request.program(), executor);
    if (!made.ok()) return made.status();
    (evaluation ? job->evaluation_data_ : job->training_data_) = *std::move(source);
    (evaluation ? job->evaluation_ : job->training_) = *std::move(made);
  }
  const v1::PassBorders& b = job->borders_;
  const int ends[] = {0,
                      b.forward_end(),
                      b.backward_end(),
                      b.store_end(),
                      b.accumulate_end(),
                      request.program().instructions_size()};
  if (!std::is_sorted(std::begin(ends), std::end(ends))) {
    return absl::InvalidArgumentError(
        absl::StrCat("session: the borders ", b.ShortDebugString(), " do not ascend within ",
                     request.program().instructions_size(), " instructions"));
  }
  absl::Status s = LoadInitialValues(*options.storage, request, options.cancelled, *job->training_,
                                     job->evaluation_.get());
  if (!s.ok()) return s;
  return job;
}

int64_t SessionJob::measured_peak_bytes() const {
  return training_->measured_peak_bytes() + evaluation_->measured_peak_bytes();
}

bool SessionJob::IsGradient(int buffer) const {
  return training_->buffer(buffer).kind() == v1::OPTIMIZER_STATE &&
         absl::EndsWith(training_->tensor_name(buffer), ".grad");
}

void SessionJob::ListTensors(v1::LoadProgramReply* reply) const {
  const auto add = [&](const Executor& executor, int buffer, v1::SessionTensorKind kind,
                       const std::string& name) {
    v1::RankTensor* tensor = reply->add_tensors();
    tensor->set_buffer(buffer);
    tensor->set_evaluation(&executor == evaluation_.get());
    tensor->set_kind(kind);
    tensor->set_name(name);
    *tensor->mutable_spec() = executor.buffer(buffer).spec();
  };
  for (int i = 0; i < training_->num_buffers(); ++i) {
    if (!IsCheckpointed(*training_, i)) continue;
    const std::string& name = training_->tensor_name(i);
    if (IsGradient(i)) {
      add(*training_, i, v1::SESSION_GRADIENT, name.substr(0, name.size() - 5));
    } else if (training_->buffer(i).kind() == v1::PARAMETER_SHARD) {
      add(*training_, i, v1::SESSION_PARAMETER, name);
    } else {
      add(*training_, i, v1::SESSION_OPTIMIZER_STATE, name);
    }
  }
  for (const Executor* executor : {training_.get(), evaluation_.get()}) {
    for (const auto& [name, buffer] : executor->program().outputs()) {
      add(*executor, buffer, v1::SESSION_OUTPUT, OutputOf(executor->program(), name));
    }
  }
}

absl::Status SessionJob::Connect() {
  const v1::Program& program = training_->program();
  if (program.world_size() == 1) return peers_.Cancelled();
  const absl::Duration soon = std::min(peer_timeout_, kMaxConnectTimeout);
  const absl::StatusOr<bool> connected = peers_.Connect([&](std::function<bool()> cancelled) {
    return options_.connect(program.rank(), program.world_size(),
                            PeerTimeouts{soon, soon, peer_timeout_}, std::move(cancelled));
  });
  if (!connected.ok()) return connected.status();
  training_->SetCommunicator(peers_.communicator());
  evaluation_->SetCommunicator(peers_.communicator());
  return absl::OkStatus();
}

std::unique_ptr<Communicator> SessionJob::TakeCommunicator() {
  training_->SetCommunicator(nullptr);
  evaluation_->SetCommunicator(nullptr);
  return peers_.Take();
}

absl::Status SessionJob::ChooseBatch(v1::RankCommand* command, SessionSource& source) {
  switch (command->batch_case()) {
    case v1::RankCommand::kOwnOrder:
    case v1::RankCommand::kHeldOut:
      return source.UseOwnOrder();
    case v1::RankCommand::kRows:
      return source.UseRows({command->rows().values().begin(), command->rows().values().end()});
    case v1::RankCommand::kGiven:
      return source.UseGiven(ColumnsOf(command));
    case v1::RankCommand::BATCH_NOT_SET:
      break;
  }
  return absl::OkStatus();
}

absl::Status SessionJob::Run(v1::RankCommand command, const Emit& emit) {
  if (absl::Status s = peers_.Cancelled(); !s.ok()) return s;
  v1::RankResult result;
  result.set_number(command.number());
  absl::Status status;
  switch (command.command_case()) {
    case v1::RankCommand::kPasses:
      status = ChooseBatch(&command, *training_data_);
      if (!status.ok()) return status;
      return RunPasses(command.passes(), command.own_order(), command.number(), emit);
    case v1::RankCommand::kEvaluate:
      status = ChooseBatch(&command, *evaluation_data_);
      if (status.ok()) status = Evaluate(command.evaluate(), &result);
      break;
    case v1::RankCommand::kRead:
      return Read(command.read(), command.number(), emit);
    case v1::RankCommand::kWrite:
      status = Write(command);
      break;
    case v1::RankCommand::kCheckpoint: {
      absl::StatusOr<v1::CheckpointShard> shard =
          WriteShardOf(options_.storage->checkpoints(), *training_,
                       command.checkpoint().directory(), command.checkpoint().steps_done());
      if (!shard.ok()) return shard.status();
      *result.mutable_shard() = *std::move(shard);
      break;
    }
    case v1::RankCommand::COMMAND_NOT_SET:
      return absl::InvalidArgumentError(
          absl::StrCat("command ", command.number(), " of a session says nothing to do"));
  }
  return status.ok() ? emit(result) : status;
}

absl::StatusOr<v1::StepReport> SessionJob::RunOnce(const v1::RankCommand::Passes& passes,
                                                   int64_t time) {
  const absl::Time start = absl::Now();
  PassOptions options;
  options.step = passes.first_forward() + time;
  options.update = passes.first_update() + time;
  if (passes.has_learning_rate()) options.learning_rate = passes.learning_rate();
  options.allow_not_finite = true;
  v1::StepReport report;
  report.set_step(options.update);
  const auto run = [&](int begin, int end) -> absl::Status {
    absl::StatusOr<StepResult> result = training_->RunPart(begin, end, options);
    if (!result.ok()) return result.status();
    for (const auto& [name, value] : result->values) (*report.mutable_values())[name] += value;
    // The same on all ranks, so only one reports it.
    if (passes.update() && training_->program().rank() == 0) {
      (*report.mutable_values())["learning_rate"] = result->learning_rate;
    }
    return absl::OkStatus();
  };
  if (passes.zero_gradients()) {
    gradients_are_zero_ = true;
    zeros_written_ = false;
  }
  absl::Status status;
  if (passes.forward()) status = run(0, borders_.forward_end());
  if (status.ok() && passes.backward()) {
    const bool store = std::exchange(gradients_are_zero_, false);
    zeros_written_ = true;
    status = run(borders_.forward_end(), borders_.backward_end());
    if (status.ok()) {
      status = store ? run(borders_.backward_end(), borders_.store_end())
                     : run(borders_.store_end(), borders_.accumulate_end());
    }
  }
  if (status.ok() && passes.update()) {
    status = WriteZeroGradients();
    if (status.ok()) {
      status = run(borders_.accumulate_end(), training_->program().instructions_size());
    }
  }
  if (!status.ok()) return status;
  report.set_seconds(absl::ToDoubleSeconds(absl::Now() - start));
  return report;
}

absl::Status SessionJob::RunPasses(const v1::RankCommand::Passes& passes, int64_t first_batch,
                                   uint64_t number, const Emit& emit) {
  v1::RankResult result;
  result.set_number(number);
  for (int64_t time = 0; time < passes.times(); ++time) {
    if (absl::Status s = peers_.Cancelled(); !s.ok()) return s;
    training_data_->SetBatch(first_batch + time);
    absl::StatusOr<v1::StepReport> report = RunOnce(passes, time);
    if (!report.ok()) {
      // A stop aborts the communicator, so the pass's own error would hide the reason.
      if (absl::Status s = peers_.Cancelled(); !s.ok()) return s;
      return report.status();
    }
    *result.add_steps() = *std::move(report);
    if (result.steps_size() < kStepsPerMessage || time + 1 == passes.times()) continue;
    result.set_more(true);
    if (absl::Status s = emit(result); !s.ok()) return s;
    result.clear_steps();
    result.set_more(false);
  }
  return emit(result);
}

absl::Status SessionJob::Evaluate(const v1::RankCommand::Evaluate& evaluate,
                                  v1::RankResult* result) {
  const absl::Time start = absl::Now();
  PassOptions options;
  options.reports = evaluate.reports();
  options.allow_not_finite = true;
  v1::StepReport* report = result->add_steps();
  const int64_t last = evaluate.first() + evaluate.batches();
  for (int64_t batch = evaluate.first(); batch < last; ++batch) {
    if (absl::Status s = peers_.Cancelled(); !s.ok()) return s;
    options.step = batch;
    evaluation_data_->SetBatch(batch);
    absl::StatusOr<StepResult> ran =
        evaluation_->RunPart(0, evaluation_->program().instructions_size(), options);
    if (!ran.ok()) {
      if (absl::Status s = peers_.Cancelled(); !s.ok()) return s;
      return absl::Status(ran.status().code(),
                          absl::StrCat("evaluation: ", ran.status().message()));
    }
    for (const auto& [name, value] : ran->values) (*report->mutable_values())[name] += value;
  }
  for (auto& [name, value] : *report->mutable_values()) {
    value /= static_cast<double>(evaluate.batches());
  }
  report->set_seconds(absl::ToDoubleSeconds(absl::Now() - start));
  return absl::OkStatus();
}

absl::Status SessionJob::WriteZeroGradients() {
  if (!gradients_are_zero_ || std::exchange(zeros_written_, true)) return absl::OkStatus();
  std::vector<char> zeros;
  for (int i = 0; i < training_->num_buffers(); ++i) {
    if (!IsCheckpointed(*training_, i) || !IsGradient(i)) continue;
    zeros.resize(static_cast<size_t>(training_->spec(i).bytes()), 0);
    absl::Status s = training_->WriteBuffer(i, zeros.data(), training_->spec(i).bytes());
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status SessionJob::ReadOne(int buffer, bool evaluation, uint64_t number, const Emit& emit) {
  Executor& executor = evaluation ? *evaluation_ : *training_;
  if (buffer < 0 || buffer >= executor.num_buffers()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no buffer ", buffer));
  }
  const int64_t bytes = executor.spec(buffer).bytes();
  std::vector<char> data(static_cast<size_t>(bytes));
  if (absl::Status s = executor.ReadBuffer(buffer, data.data(), bytes); !s.ok()) return s;
  for (int64_t at = 0; at < bytes; at += kBytesPerMessage) {
    v1::RankResult result;
    result.set_number(number);
    result.set_more(true);
    v1::BufferPart* part = result.add_reads();
    part->set_buffer(buffer);
    part->set_evaluation(evaluation);
    part->set_offset(at);
    part->set_data(data.data() + at, static_cast<size_t>(std::min(kBytesPerMessage, bytes - at)));
    if (absl::Status s = emit(result); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status SessionJob::Read(const v1::RankCommand::Read& read, uint64_t number,
                              const Emit& emit) {
  const bool gradients =
      std::any_of(read.buffers().begin(), read.buffers().end(), [this](int buffer) {
        return buffer >= 0 && buffer < training_->num_buffers() && IsGradient(buffer);
      });
  absl::Status status = gradients ? WriteZeroGradients() : absl::OkStatus();
  for (const int buffer : read.buffers()) {
    if (status.ok()) status = ReadOne(buffer, /*evaluation=*/false, number, emit);
  }
  for (const int buffer : read.evaluation_buffers()) {
    if (status.ok()) status = ReadOne(buffer, /*evaluation=*/true, number, emit);
  }
  if (!status.ok()) return status;
  v1::RankResult last;
  last.set_number(number);
  return emit(last);
}

absl::Status SessionJob::Write(const v1::RankCommand& command) {
  for (const v1::BufferPart& part : command.writes()) {
    const int buffer = part.buffer();
    if (part.evaluation() || buffer < 0 || buffer >= training_->num_buffers() ||
        !IsCheckpointed(*training_, buffer)) {
      return absl::InvalidArgumentError(
          absl::StrCat("buffer ", buffer, " is no parameter, gradient or optimizer state"));
    }
    if (IsGradient(buffer)) {
      if (absl::Status s = WriteZeroGradients(); !s.ok()) return s;
      gradients_are_zero_ = false;
    }
    absl::Status s = training_->WriteBuffer(
        buffer, part.data().data(), static_cast<int64_t>(part.data().size()), part.offset());
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace espalier
