// Session: the commands.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/artifacts/artifact_names.h"
#include "server/jobs/export_model.h"
#include "server/jobs/rank_report_merger.h"
#include "server/sessions/session.h"
#include "storage/manifest.h"

namespace espalier {
namespace {

constexpr int64_t kMaxSteps = 100'000;  // of one command: its reply has a report of each
constexpr int64_t kWriteBytesPerMessage = 32 << 20;

bool IsNext(const ChosenExamples& examples) {
  return examples.source == ChosenExamples::Source::kNext;
}

}  // namespace

absl::Status Session::Forward(const v1::SessionCommand::Forward& command,
                              std::vector<WholeTensor> tensors, Answer* answer) {
  absl::StatusOr<ChosenExamples> examples =
      ChooseExamples(prepared_, command.batch(), std::move(tensors));
  if (!examples.ok()) return examples.status();
  if (examples->source == ChosenExamples::Source::kHeldOut) {
    return absl::InvalidArgumentError("Forward: held-out examples are for Evaluate and Predict");
  }
  const bool next = IsNext(*examples);
  if (!next) {
    absl::Status full = CheckFullBatches("Forward", examples->examples, 1);
    if (!full.ok()) return full;
  }
  v1::RankCommand passes = PassesOf(1);
  passes.mutable_passes()->set_forward(true);
  absl::StatusOr<std::vector<v1::StepReport>> reports =
      RunPasses(WithExamples(std::move(passes), *std::move(examples), state_.next_batch()));
  if (!reports.ok()) return reports.status();
  state_.DidForward(next);
  AddToMeans(reports->at(0));
  *answer->reply.mutable_values() = Finished(reports->at(0)).values();
  FillMeans(&answer->reply);
  return absl::OkStatus();
}

absl::Status Session::Backward(Answer* answer) {
  if (absl::Status s = state_.CheckBackward(); !s.ok()) return s;
  v1::RankCommand passes = PassesOf(1);
  passes.mutable_passes()->set_backward(true);
  passes.mutable_passes()->set_zero_gradients(zero_gradients_);
  // With the random numbers of its forward pass.
  passes.mutable_passes()->set_first_forward(state_.forwards() - 1);
  std::vector<v1::RankCommand> messages;
  messages.push_back(std::move(passes));
  if (state_.scales_loss()) {
    absl::StatusOr<std::vector<v1::StepReport>> reports = RunPasses(std::move(messages));
    if (!reports.ok()) return reports.status();
    *answer->reply.mutable_values() = reports->at(0).values();  // the loss scale
  } else {
    // It reports nothing, so the client need not wait for it.
    if (absl::Status s = ranks_->Post(std::move(messages)); !s.ok()) return s;
    zero_gradients_ = false;
  }
  state_.DidBackward();
  return absl::OkStatus();
}

absl::Status Session::Update(Answer* answer) {
  if (absl::Status s = state_.CheckUpdate(); !s.ok()) return s;
  v1::RankCommand passes = PassesOf(1);
  passes.mutable_passes()->set_update(true);
  passes.mutable_passes()->set_first_forward(std::max<int64_t>(0, state_.forwards() - 1));
  absl::StatusOr<std::vector<v1::StepReport>> reports = RunPasses({std::move(passes)});
  if (!reports.ok()) return reports.status();
  state_.DidUpdate();
  *answer->reply.mutable_values() = reports->at(0).values();
  return absl::OkStatus();
}

absl::Status Session::Step(const v1::SessionCommand::Step& command,
                           std::vector<WholeTensor> tensors, Answer* answer) {
  const int64_t steps = command.steps() == 0 ? 1 : command.steps();
  if (steps < 0 || steps > kMaxSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("Step: ", steps, " steps; accepted: 0 (one) to ", kMaxSteps));
  }
  absl::StatusOr<ChosenExamples> examples =
      ChooseExamples(prepared_, command.batch(), std::move(tensors));
  if (!examples.ok()) return examples.status();
  if (examples->source == ChosenExamples::Source::kHeldOut) {
    return absl::InvalidArgumentError("Step: held-out examples are for Evaluate and Predict");
  }
  const bool next = IsNext(*examples);
  if (!next) {
    absl::Status full = CheckFullBatches("Step", examples->examples, steps);
    if (!full.ok()) return full;
  }
  v1::RankCommand command_of_ranks = PassesOf(steps);
  v1::RankCommand::Passes* passes = command_of_ranks.mutable_passes();
  passes->set_zero_gradients(true);
  passes->set_forward(true);
  passes->set_backward(true);
  passes->set_update(true);
  absl::StatusOr<std::vector<v1::StepReport>> reports = RunPasses(
      WithExamples(std::move(command_of_ranks), *std::move(examples), state_.next_batch()));
  if (!reports.ok()) return reports.status();
  state_.DidSteps(steps, next);
  for (const v1::StepReport& report : *reports) {
    AddToMeans(report);
    *answer->reply.add_steps() = Finished(report);
  }
  *answer->reply.mutable_values() = answer->reply.steps(static_cast<int>(steps) - 1).values();
  FillMeans(&answer->reply);
  return absl::OkStatus();
}

absl::Status Session::Evaluate(const v1::SessionCommand::Evaluate& command,
                               std::vector<WholeTensor> tensors, Answer* answer) {
  absl::StatusOr<ChosenExamples> examples =
      ChooseExamples(prepared_, command.batch(), std::move(tensors));
  if (!examples.ok()) return examples.status();
  if (IsNext(*examples)) {
    return absl::InvalidArgumentError("Evaluate: `next` batches are for training");
  }
  const int64_t batch = prepared_.job.batch_size;
  int64_t batches = (examples->examples + batch - 1) / batch;
  if (!prepared_.job.unweighted.empty()) {
    if (examples->source == ChosenExamples::Source::kHeldOut) {
      batches = examples->examples / batch;  // as a job's evaluation
    } else {
      absl::Status full = CheckFullBatches("Evaluate", examples->examples, 0);
      if (!full.ok()) return full;
    }
  }
  v1::RankCommand evaluate;
  evaluate.mutable_evaluate()->set_reports(true);
  evaluate.mutable_evaluate()->set_batches(batches);
  absl::StatusOr<v1::StepReport> report =
      RunEvaluation(WithExamples(std::move(evaluate), *std::move(examples), 0));
  if (!report.ok()) return report.status();
  state_.DidEvaluate("Evaluate");
  *answer->reply.mutable_values() = Finished(*report).values();
  return absl::OkStatus();
}

absl::Status Session::Predict(const v1::SessionCommand::Predict& command,
                              std::vector<WholeTensor> tensors, Answer* answer) {
  SessionTensors::Names names;
  std::set<std::string> needed;
  const int64_t batch = prepared_.job.batch_size;
  const auto choose = [&](const std::string& name) {
    names.emplace_back(v1::SESSION_OUTPUT, name);
    const std::set<std::string>& columns = prepared_.needs.at(name);
    needed.insert(columns.begin(), columns.end());
  };
  for (const std::string& name : command.outputs()) {
    if (!prepared_.outputs.contains(name)) {
      return tensors_.Find(v1::SESSION_OUTPUT, name).status();  // lists what there is
    }
    choose(name);
  }
  if (command.outputs().empty()) {
    for (const auto& [name, type] : prepared_.outputs) choose(name);
  }
  if (names.empty()) {
    return absl::FailedPreconditionError(
        "Predict: the graph has no named output but its loss and metrics; name others in `keep` "
        "when the session is opened");
  }
  absl::StatusOr<ChosenExamples> examples =
      ChooseExamples(prepared_, command.batch(), std::move(tensors), &needed);
  if (!examples.ok()) return examples.status();
  if (IsNext(*examples)) {
    return absl::InvalidArgumentError("Predict: `next` batches are for training");
  }
  const int64_t wanted = examples->examples;
  if (examples->source == ChosenExamples::Source::kHeldOut) {
    examples->source = ChosenExamples::Source::kRows;
    for (int64_t i = 0; i < wanted; ++i) {
      examples->rows.push_back(prepared_.training_examples + i);
    }
  }
  int64_t bytes = 0;
  for (const auto& [kind, name] : names) {
    const TensorType& type = prepared_.outputs.at(name);
    const bool of_examples = !type.dims.empty() && type.dims[0] == batch;
    if (!of_examples && wanted != batch) {
      return absl::InvalidArgumentError(
          absl::StrCat("Predict: output '", name, "' is ", ToString(type),
                       ", not a row for each example; give one batch of ", batch));
    }
    bytes += type.bytes() * ((wanted + batch - 1) / batch);
  }
  if (bytes > kMaxCommandBytes) {
    return absl::InvalidArgumentError(absl::StrCat("Predict: the outputs have ", bytes,
                                                   " bytes; at most ", kMaxCommandBytes,
                                                   " in one command: give fewer examples"));
  }
  FillBatches(batch, &*examples);
  const int64_t batches = examples->examples / batch;
  v1::RankCommand evaluate;
  evaluate.mutable_evaluate()->set_batches(1);
  std::vector<v1::RankCommand> messages = WithExamples(evaluate, *std::move(examples), 0);
  for (int64_t b = 0; b < batches; ++b) {
    absl::Status status = RunEvaluation(std::move(messages)).status();
    if (!status.ok()) return status;
    state_.DidEvaluate("Predict");
    absl::StatusOr<std::vector<WholeTensor>> part = ReadTensors(names, /*evaluation=*/true);
    if (!part.ok()) return part.status();
    for (size_t i = 0; i < part->size(); ++i) {
      if (b == 0) {
        answer->tensors.push_back(std::move((*part)[i]));
      } else {
        answer->tensors[i].data += (*part)[i].data;
        answer->tensors[i].type.dims[0] += batch;
      }
    }
    evaluate.mutable_evaluate()->set_first(b + 1);
    messages = {evaluate};  // the same examples
  }
  for (WholeTensor& tensor : answer->tensors) {
    if (wanted == batches * batch) break;
    tensor.data.resize(tensor.data.size() / static_cast<size_t>(tensor.type.dims[0]) *
                       static_cast<size_t>(wanted));
    tensor.type.dims[0] = wanted;
  }
  return absl::OkStatus();
}

absl::Status Session::GetTensors(const v1::SessionCommand::GetTensors& command, Answer* answer) {
  SessionTensors::Names names;
  std::set<std::pair<v1::SessionTensorKind, std::string>> chosen;
  int64_t bytes = 0;
  for (const v1::SessionCommand::GetTensors::Choice& choice : command.tensors()) {
    const v1::SessionTensorKind kind = choice.kind();
    std::vector<std::string> matching = tensors_.Matching(kind, choice.name());
    if (matching.empty()) return tensors_.Find(kind, choice.name()).status();
    if (kind == v1::SESSION_OUTPUT && state_.outputs() == SessionState::Outputs::kNone) {
      return absl::FailedPreconditionError(
          "GetTensors: no outputs were computed yet; send Forward, Step, Evaluate or Predict "
          "first");
    }
    if (kind == v1::SESSION_GRADIENT) {
      if (absl::Status s = state_.CheckGradientsShown(); !s.ok()) return s;
      if (absl::Status s = FlushZeroGradients(); !s.ok()) return s;
    }
    for (std::string& name : matching) {
      if (!chosen.emplace(kind, name).second) continue;
      bytes += tensors_.Find(kind, name)->bytes();
      names.emplace_back(kind, std::move(name));
    }
  }
  if (names.empty()) return absl::InvalidArgumentError("GetTensors: name at least one tensor");
  if (bytes > kMaxCommandBytes) {
    return absl::InvalidArgumentError(absl::StrCat("GetTensors: ", bytes, " bytes; at most ",
                                                   kMaxCommandBytes,
                                                   " in one command: get them in several"));
  }
  absl::StatusOr<std::vector<WholeTensor>> tensors =
      ReadTensors(names, state_.outputs() == SessionState::Outputs::kEvaluation);
  if (!tensors.ok()) return tensors.status();
  answer->tensors = *std::move(tensors);
  return absl::OkStatus();
}

absl::Status Session::SetTensors(std::vector<WholeTensor> tensors) {
  if (tensors.empty()) return absl::InvalidArgumentError("SetTensors: give at least one tensor");
  bool parameters = false, gradients = false;
  for (const WholeTensor& tensor : tensors) {
    if (tensor.kind == v1::SESSION_OUTPUT || tensor.kind == v1::SESSION_TENSOR_KIND_UNSPECIFIED) {
      return absl::InvalidArgumentError(
          absl::StrCat("SetTensors: '", tensor.name,
                       "' is no parameter, gradient or optimizer state by its kind"));
    }
    const absl::StatusOr<TensorType> type = tensors_.Find(tensor.kind, tensor.name);
    if (!type.ok()) return type.status();
    if (*type != tensor.type) {
      return absl::InvalidArgumentError(absl::StrCat("SetTensors: '", tensor.name, "' is ",
                                                     ToString(*type), ", given ",
                                                     ToString(tensor.type)));
    }
    parameters = parameters || tensor.kind == v1::SESSION_PARAMETER;
    gradients = gradients || tensor.kind == v1::SESSION_GRADIENT;
  }
  if (gradients) {
    if (absl::Status s = state_.CheckGradientsShown(); !s.ok()) return s;
    if (absl::Status s = FlushZeroGradients(); !s.ok()) return s;
  }
  std::vector<std::vector<v1::RankCommand>> messages(ranks_->size());
  std::vector<int64_t> bytes(ranks_->size(), 0);
  for (std::vector<v1::RankCommand>& of_rank : messages) of_rank.emplace_back().mutable_write();
  for (const WholeTensor& tensor : tensors) {
    std::vector<std::vector<v1::BufferPart>> writes = tensors_.WritesOf(tensor);
    for (size_t r = 0; r < writes.size(); ++r) {
      for (v1::BufferPart& part : writes[r]) {
        bytes[r] += static_cast<int64_t>(part.data().size());
        if (bytes[r] > kWriteBytesPerMessage) {
          messages[r].emplace_back().mutable_write();
          bytes[r] = static_cast<int64_t>(part.data().size());
        }
        *messages[r].back().add_writes() = std::move(part);
      }
    }
  }
  absl::Status status = ranks_->Run(std::move(messages),
                                    [](size_t, const v1::RankResult&) { return absl::OkStatus(); });
  if (!status.ok()) return status;
  if (parameters) state_.DidSetParameters();
  if (gradients) state_.DidSetGradients();
  return absl::OkStatus();
}

absl::Status Session::SetLearningRate(const v1::SessionCommand::SetLearningRate& command) {
  if (!command.has_value()) {
    state_.learning_rate.reset();
    return absl::OkStatus();
  }
  if (!(command.value() >= 0) || !std::isfinite(command.value())) {
    return absl::InvalidArgumentError(
        absl::StrCat("SetLearningRate: ", command.value(), "; accepted: 0 or more"));
  }
  state_.learning_rate = command.value();
  return absl::OkStatus();
}

absl::Status Session::SaveCheckpoint(const std::string& artifact, const MaySave& may_save,
                                     Answer* answer) {
  absl::Status allowed = CheckClientArtifactName(artifact);
  if (allowed.ok()) allowed = may_save(artifact);
  if (!allowed.ok()) {
    return absl::Status(allowed.code(), absl::StrCat("SaveCheckpoint: ", allowed.message()));
  }
  const absl::StatusOr<v1::Artifact> taken = tools_.artifacts->Find(artifact);
  if (taken.ok() && taken->kind() != v1::Artifact::MODEL) {
    return absl::AlreadyExistsError(absl::StrCat("SaveCheckpoint: artifact '", artifact,
                                                 "' exists and is no model; choose another name"));
  }
  const std::string job_id = absl::StrCat(facts_.id, "/", ++saved_);  // each one is a new version
  const std::string folder = JoinPath(folder_, absl::StrCat("save-", saved_));
  const absl::Cleanup remove = [&] { tools_.checkpoints->Delete(folder).IgnoreError(); };
  v1::RankCommand write;
  write.mutable_checkpoint()->set_directory(folder);
  write.mutable_checkpoint()->set_steps_done(state_.updates());
  RankReportMerger merger(static_cast<int>(ranks_->size()), folder_);
  std::optional<RankReportMerger::Checkpoint> complete;
  std::vector<std::vector<v1::RankCommand>> messages(1);
  messages[0].push_back(std::move(write));
  absl::Status status = ranks_->Run(std::move(messages), [&](size_t rank, v1::RankResult result) {
    auto merged = merger.AddShard(static_cast<int>(rank), result.shard());
    if (!merged.ok()) return merged.status();
    if (merged->has_value()) complete = *std::move(merged);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  if (!complete.has_value()) return absl::InternalError("the workers wrote no whole checkpoint");
  if (!complete->not_written.empty()) return absl::ResourceExhaustedError(complete->not_written);
  Manifest manifest;
  manifest.job_id = facts_.id;
  manifest.steps_done = state_.updates();
  manifest.graph_fingerprint = graph_fingerprint_;
  manifest.files = complete->files;
  status = WriteManifest(*tools_.checkpoints, folder, manifest);
  if (!status.ok()) return status;
  std::string no_onnx;
  const absl::StatusOr<std::string> registered =
      ExportModel({.files = tools_.files,
                   .checkpoints = tools_.checkpoints,
                   .artifacts = tools_.artifacts,
                   .registry = tools_.registry,
                   .model = &prepared_.job.model,
                   .checkpoint = folder,
                   .job_id = job_id,
                   .name = artifact,
                   .owner = facts_.owner,
                   .init_artifact = prepared_.spec.init_artifact(),
                   .tokenizer_artifact = prepared_.spec.tokenizer_artifact(),
                   .stop = nullptr},
                  &no_onnx);
  if (!registered.ok()) return registered.status();
  answer->reply.set_artifact(*registered);
  return absl::OkStatus();
}

}  // namespace espalier
