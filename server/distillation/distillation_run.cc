#include "server/distillation/distillation_run.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "models/distillation.h"
#include "ops/graph/graph_proto.h"
#include "proto/states.h"
#include "server/artifacts/model_assets.h"
#include "server/artifacts/store_file.h"
#include "server/distillation/teacher_continuations.h"
#include "server/jobs/init_model.h"
#include "serving/distillation/distillation_samples.h"
#include "storage/npz_writer.h"

namespace espalier {
namespace {

constexpr absl::Duration kWatch = absl::Milliseconds(100);
// between writes of continuations, at least
constexpr absl::Duration kWriteDown = absl::Seconds(2);
constexpr int kWriting = 20;                        // writes take at most 1/20 of the time
constexpr int kScoredAtOnce = 8;                    // concurrent requests of scoring and measuring
constexpr int kScoreRows = 512, kMostRows = 65536;  // rows of one of their steps

std::vector<DistillationPrompt> PlainPrompts(
    const google::protobuf::RepeatedPtrField<v1::DistillationPrompt>& prompts, int soft_labels) {
  std::vector<DistillationPrompt> plain;
  for (const v1::DistillationPrompt& prompt : prompts) {
    plain.push_back({{prompt.prompt().begin(), prompt.prompt().end()},
                     {prompt.continuation().begin(), prompt.continuation().end()},
                     {prompt.learned_by().begin(), prompt.learned_by().end()},
                     {}});
    if (soft_labels == 0) continue;
    plain.back().likely.resize(static_cast<size_t>(prompt.likely_size() / soft_labels));
    for (int i = 0; i < std::min(prompt.likely_size(), prompt.likely_probability_size()); ++i) {
      plain.back().likely[static_cast<size_t>(i / soft_labels)].push_back(
          {prompt.likely(i), prompt.likely_probability(i)});
    }
  }
  return plain;
}

template <typename T>
Array ArrayOf(TensorType type, const std::vector<T>& values) {
  Array array;
  array.type = std::move(type);
  array.data.resize(values.size() * sizeof(T));
  std::memcpy(array.data.data(), values.data(), array.data.size());
  return array;
}

// Returns the data set of a training job.
absl::StatusOr<std::string> ExamplesOf(const DistillationRound& round) {
  const Dims places = {round.rows, round.columns};
  std::map<std::string, Array> columns;
  columns["tokens"] = ArrayOf({DType::kI32, places}, round.tokens);
  columns["targets"] = ArrayOf({DType::kI32, places}, round.targets);
  // Without soft labels, the job builds the artifact's own graph with the usual loss itself.
  if (round.soft > 0) {
    const Dims labels = {round.rows, round.columns, round.soft};
    columns["soft_tokens"] = ArrayOf({DType::kI32, labels}, round.soft_tokens);
    columns["soft_weights"] = ArrayOf({DType::kF32, labels}, round.soft_weights);
  }
  return WriteNpz(columns);
}

v1::DraftStatistics MeasureOf(const DraftEfficiency& worth) {
  v1::DraftStatistics measure;
  measure.set_tokens(worth.tokens);
  measure.set_verifications(worth.verifications);
  measure.set_drafted(worth.drafted);
  measure.set_accepted(worth.accepted);
  measure.set_tokens_per_verification(worth.tokens_per_verification());
  return measure;
}

}  // namespace

std::string DistillationPromptsBlob(const std::string& id) {
  return absl::StrCat("distillation/", id);
}

absl::Duration PauseBetweenWrites(absl::Duration taken) {
  return std::max(kWriteDown, (kWriting - 1) * taken);
}

std::string DistillationRun::RoundName(int k) const {
  return absl::StrCat(job_.id(), ".round-", k + 1);
}

DistillationProgress DistillationRun::ProgressOf(const std::string& stage) {
  return
      [this, stage](int64_t done, int64_t total) { return listener_.progress(stage, done, total); };
}

absl::Status DistillationRun::Run() {
  absl::Status status = LoadPrompts();
  if (status.ok()) status = MakeContinuations();
  for (int k = 0; k < job_.ssms_size() && status.ok(); ++k) {
    status = Train(k);
    if (status.ok()) status = Score(k);
  }
  if (status.ok()) status = Measure();
  for (int k = 0; k < job_.ssms_size() && status.ok(); ++k) status = Report(k);
  return status.ok() ? CleanUp() : status;
}

absl::Status DistillationRun::LoadPrompts() {
  absl::StatusOr<std::string> blob = tools_.store->GetBlob(DistillationPromptsBlob(job_.id()));
  if (!blob.ok()) return blob.status();
  if (prompts_.ParseFromString(*blob)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the prompts of ", job_.id(), " do not parse"));
}

absl::Status DistillationRun::SavePrompts() {
  return tools_.store->PutBlob(DistillationPromptsBlob(job_.id()), prompts_.SerializeAsString());
}

absl::Status DistillationRun::MakeContinuations() {
  const int64_t all = prompts_.prompts_size();
  const int64_t before =
      std::count_if(prompts_.prompts().begin(), prompts_.prompts().end(),
                    [](const v1::DistillationPrompt& p) { return p.continued(); });
  if (before < all) {
    int64_t saved = before;
    absl::Time next = absl::Now() + kWriteDown;
    absl::Status status = Continue(tools_, job_.spec(), &prompts_, [&](int64_t done) {
      if (const absl::Time begin = absl::Now(); done > saved && begin >= next) {
        if (absl::Status written = SavePrompts(); !written.ok()) return written;
        saved = done;
        const absl::Time end = absl::Now();
        next = end + PauseBetweenWrites(end - begin);
      }
      return listener_.progress("continuing prompts", done, all);
    });
    const absl::Status written = SavePrompts();
    if (!status.ok()) return status;
    if (!written.ok()) return written;
  }
  job_.set_samples(CountSamples(PlainPrompts(prompts_.prompts(), 0), job_.spec().sample_tokens()));
  return Save();
}

absl::Status DistillationRun::Train(int k) {
  if (job_.ssms(k).trained() || job_.ssms(k).skipped()) return absl::OkStatus();
  if (job_.ssms(k).job_id().empty()) {
    if (absl::Status status = SubmitTraining(k); !status.ok()) return status;
  }
  return job_.ssms(k).skipped() ? absl::OkStatus() : WaitForTraining(k);
}

absl::Status DistillationRun::SubmitTraining(int k) {
  const v1::DistillationSpec& boost = job_.spec();
  const v1::DistillationStart& start = boost.ssms(k);
  v1::DistilledSsm* ssm = job_.mutable_ssms(k);
  const DistillationRound round = MakeRound(PlainPrompts(prompts_.prompts(), boost.soft_labels()),
                                            boost.sample_tokens(), boost.soft_labels());
  ssm->set_samples(round.samples);
  ssm->set_rows(round.rows);
  if (round.rows == 0) {
    ssm->set_skipped(true);
    return Save();
  }
  absl::StatusOr<std::string> examples = ExamplesOf(round);
  if (!examples.ok()) return examples.status();
  absl::Status status =
      StoreFile(tools_.artifacts,
                {RoundName(k), v1::Artifact::DATASET, {{"boost", job_.id()}}, job_.owner()},
                /*replace=*/true, "samples.npz", *examples)
          .status();
  if (!status.ok()) return status;

  // The same request each time, with an idempotency key: a crash between Submit and Save leaves one
  // job.
  v1::SubmitRequest request;
  request.set_idempotency_key(absl::StrCat("distillation/", job_.id(), "/", k));
  v1::TrainingSpec& spec = *request.mutable_spec();
  spec.set_name(ssm->output());
  spec.set_output_model(ssm->output());
  std::string config;
  if (start.start_case() == v1::DistillationStart::kArtifact) {
    spec.set_init_artifact(start.artifact());
    absl::StatusOr<ModelDescription> ssm = tools_.describe(start.artifact());
    if (!ssm.ok()) return ssm.status();
    config = ConfigAfterTraining(ssm->model.facts.config);
  } else {
    absl::StatusOr<ModelDescription> llm = tools_.describe(boost.llm());
    if (!llm.ok()) return llm.status();
    const std::string& tokenizer = llm->model.facts.tokenizer;
    if (tokenizer.empty()) spec.set_tokenizer_artifact(boost.llm());
    config = ConfigFromScratch(start.config(), tokenizer);
  }
  // An artifact's own graph with the usual loss is what the job builds by itself.
  if (round.soft > 0 || start.start_case() == v1::DistillationStart::kConfig) {
    absl::StatusOr<LanguageModel> model = ReadModel(config);
    if (!model.ok()) return model.status();
    absl::StatusOr<TrainingModel> training =
        round.soft > 0 ? BuildDistillation(*tools_.operators, *model, round.columns, round.soft)
                       : BuildTraining(*tools_.operators, *model, round.columns);
    if (!training.ok()) return training.status();
    *spec.mutable_graph() = ToProto(training->graph);
  }
  spec.mutable_dataset()->set_uri(absl::StrCat("artifact:", RoundName(k)));
  spec.mutable_dataset()->set_format(v1::Dataset::NPZ);
  spec.set_batch_size(std::min(boost.batch_size(), round.rows));
  spec.set_epochs(boost.epochs());
  spec.set_steps(boost.steps());
  *spec.mutable_optimizer() = boost.optimizer();
  spec.set_checkpoint_every_steps(boost.checkpoint_every_steps());
  // Otherwise all randomly initialized SSMs would be equal.
  spec.set_seed(boost.seed() + static_cast<uint64_t>(k));
  status = listener_.progress(absl::StrCat("training ", ssm->output()), 0, spec.steps());
  if (!status.ok()) return status;
  v1::SubmitReply reply;
  status = tools_.jobs->Submit(request, {.roles = Role::kTrain, .owner = job_.owner()}, &reply);
  if (status.ok()) status = ResumeCancelled(reply.job_id());
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("training '", ssm->output(), "': ", status.message()));
  }
  ssm->set_job_id(reply.job_id());
  status = Save();
  if (absl::IsCancelled(status)) {
    // A cancel during Submit could not know of this job.
    v1::CancelRequest cancel;
    cancel.set_job_id(reply.job_id());
    v1::CancelReply ignored;
    tools_.jobs->Cancel(cancel, &ignored).IgnoreError();
  }
  return status;
}

// Resumes a job that was submitted, and cancelled before the record named it.
absl::Status DistillationRun::ResumeCancelled(const std::string& job_id) {
  v1::GetJobRequest get;
  get.set_job_id(job_id);
  v1::GetJobReply job;
  absl::Status status = tools_.jobs->Get(get, &job);
  if (!status.ok() || job.job().state() != v1::CANCELLED) return status;
  v1::ResumeRequest resume;
  resume.set_job_id(job_id);
  v1::ResumeReply ignored;
  return tools_.jobs->Resume(resume, &ignored);
}

absl::Status DistillationRun::WaitForTraining(int k) {
  v1::DistilledSsm* ssm = job_.mutable_ssms(k);
  v1::GetJobRequest request;
  request.set_job_id(ssm->job_id());
  while (true) {
    v1::GetJobReply reply;
    if (absl::Status status = tools_.jobs->Get(request, &reply); !status.ok()) return status;
    const v1::Job& job = reply.job();
    absl::Status status = listener_.progress(absl::StrCat("training ", ssm->output()),
                                             job.steps_done(), job.total_steps());
    if (!status.ok()) return status;
    if (job.state() == v1::SUCCEEDED) {
      // With the version, if there was a model of that name.
      ssm->set_output(job.output_model());
      break;
    }
    if (IsOver(job.state())) {
      return absl::FailedPreconditionError(
          absl::StrCat("the training of '", ssm->output(), "', ", job.id(), ", is ",
                       StateName(job.state()), job.error().empty() ? "" : ": ", job.error(),
                       "; resume the boost-tuning, which resumes it too"));
    }
    absl::SleepFor(kWatch);
  }
  ssm->set_trained(true);
  return Save();
}

absl::Status DistillationRun::Score(int k) {
  v1::DistilledSsm* ssm = job_.mutable_ssms(k);
  if (ssm->scored() || ssm->skipped()) return absl::OkStatus();
  const int width = job_.spec().sample_tokens();
  std::vector<DistillationPrompt> prompts = PlainPrompts(prompts_.prompts(), 0);
  // Undo a score that was interrupted before it was recorded.
  for (DistillationPrompt& prompt : prompts) {
    std::replace(prompt.learned_by.begin(), prompt.learned_by.end(), k + 1, 0);
  }
  v1::ServeModelRequest request;
  request.set_artifact(ssm->output());
  request.set_generation_config("none");
  request.set_max_sequence_length(job_.spec().prompt_tokens() + job_.spec().continuation_tokens() +
                                  1);
  request.set_max_requests_per_batch(kScoredAtOnce);
  request.set_max_tokens_per_batch(kScoreRows);
  absl::StatusOr<ModelServer::Prepared> model = tools_.models->Prepare(request);
  if (!model.ok()) return model.status();
  absl::StatusOr<std::vector<std::vector<bool>>> agrees =
      ScoreContinuations(model->parts.llm.get(), *model->parts.tokenizer, model->options, prompts,
                         width, ProgressOf(absl::StrCat("scoring ", ssm->output())));
  if (!agrees.ok()) return agrees.status();
  int64_t learned = 0;
  for (size_t p = 0; p < prompts.size(); ++p) {
    learned += MarkLearned((*agrees)[p], width, k + 1, &prompts[p]);
    prompts_.mutable_prompts(static_cast<int>(p))
        ->mutable_learned_by()
        ->Assign(prompts[p].learned_by.begin(), prompts[p].learned_by.end());
  }
  if (absl::Status status = SavePrompts(); !status.ok()) return status;
  ssm->set_learned(learned);
  ssm->set_scored(true);
  return Save();
}

absl::StatusOr<DraftEfficiency> DistillationRun::MeasureEfficiency(
    const ModelServer::Prepared& models, const std::vector<int>& ssms, const std::string& stage) {
  std::vector<ModelRunner*> runners;
  for (const int ssm : ssms) runners.push_back(models.parts.ssms[static_cast<size_t>(ssm)].get());
  std::vector<std::vector<int>> prompts;
  for (const v1::DistillationPrompt& prompt : prompts_.held_out()) {
    prompts.emplace_back(prompt.prompt().begin(), prompt.prompt().end());
  }
  const SamplingParameters sampling{.temperature = job_.spec().temperature(),
                                    .seed = job_.spec().seed()};
  return MeasureDrafts(models.parts.llm.get(), runners, *models.parts.tokenizer, models.options,
                       prompts, job_.spec().continuation_tokens(), sampling, ProgressOf(stage));
}

absl::Status DistillationRun::Measure() {
  if (job_.has_after()) return absl::OkStatus();
  const v1::DistillationSpec& spec = job_.spec();
  v1::ServeModelRequest request;
  request.set_artifact(spec.llm());
  request.set_weights(spec.weights());
  request.set_generation_config("none");
  request.set_max_sequence_length(spec.prompt_tokens() + spec.continuation_tokens());
  request.set_max_requests_per_batch(kScoredAtOnce);
  *request.mutable_expansion() = spec.expansion();
  std::vector<int> before, after;          // indices into the request's SSMs
  std::map<int, int> before_of, after_of;  // by SSM
  for (int k = 0; k < spec.ssms_size(); ++k) {
    if (job_.ssms(k).skipped()) continue;
    after_of[k] = request.ssm_artifacts_size();
    after.push_back(request.ssm_artifacts_size());
    request.add_ssm_artifacts(job_.ssms(k).output());
    if (spec.ssms(k).start_case() != v1::DistillationStart::kArtifact) continue;
    before_of[k] = request.ssm_artifacts_size();
    before.push_back(request.ssm_artifacts_size());
    request.add_ssm_artifacts(spec.ssms(k).artifact());
  }
  // Rows for the trees of all SSMs that draft together, and a prompt.
  int nodes = 0, width = 1;
  for (const int children : spec.expansion()) nodes += width *= children;
  request.set_max_tokens_per_batch(std::clamp(
      kScoredAtOnce * (1 + nodes * request.ssm_artifacts_size()), kScoreRows, kMostRows));
  absl::StatusOr<ModelServer::Prepared> models = tools_.models->Prepare(request);
  if (!models.ok()) return models.status();
  const auto measure = [&](const std::vector<int>& ssms, const std::string& stage,
                           v1::DraftStatistics* out) {
    absl::StatusOr<DraftEfficiency> worth =
        MeasureEfficiency(*models, ssms, absl::StrCat("measuring ", stage));
    if (worth.ok()) *out = MeasureOf(*worth);
    return worth.status();
  };
  for (const auto& [k, index] : after_of) {
    v1::DistilledSsm* ssm = job_.mutable_ssms(k);
    absl::Status status = measure({index}, ssm->output(), ssm->mutable_after());
    if (!status.ok()) return status;
    if (before_of.count(k) == 0) continue;
    status = measure({before_of[k]}, spec.ssms(k).artifact(), ssm->mutable_before());
    if (!status.ok()) return status;
  }
  v1::DraftStatistics merged;
  if (before.size() == after.size()) {
    absl::Status status = measure(before, "all of them before", &merged);
    if (!status.ok()) return status;
    *job_.mutable_before() = merged;
  }
  absl::Status status = measure(after, "all of them", &merged);
  if (!status.ok()) return status;
  *job_.mutable_after() = merged;
  return Save();
}

absl::Status DistillationRun::Report(int k) {
  if (job_.ssms(k).skipped()) return absl::OkStatus();
  const std::string& name = job_.ssms(k).output();
  absl::StatusOr<v1::Artifact> artifact = tools_.artifacts->Find(name);
  if (!artifact.ok()) return artifact.status();
  if (artifact->metadata().contains("boost") && artifact->metadata().at("boost") == job_.id()) {
    return absl::OkStatus();
  }
  const absl::StatusOr<ArtifactFolder> folder = tools_.artifacts->Pin(name);
  if (!folder.ok()) return folder.status();
  absl::StatusOr<std::string> staging = tools_.artifacts->MakeStagingFolder();
  if (!staging.ok()) return staging.status();
  absl::Cleanup discard = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(*staging, ignored);
  };
  for (const std::string& file : artifact->files()) {
    const size_t slash = file.rfind('/');
    absl::Status status =
        slash == std::string::npos
            ? absl::OkStatus()
            : tools_.files->CreateDirectories(JoinPath(*staging, file.substr(0, slash)));
    if (status.ok()) {
      status = CopyFile(*tools_.files, JoinPath(folder->path(), file), JoinPath(*staging, file));
    }
    if (!status.ok()) return status;
  }
  v1::DistillationJob report = job_;
  report.clear_idempotency_key();
  report.clear_stage();
  report.clear_done();
  report.clear_total();
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  print.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(report, &json, print).ok()) {
    return absl::InternalError("the report of a boost-tuning has no JSON");
  }
  absl::Status status =
      WriteFileAtomically(*tools_.files, JoinPath(*staging, kDistillationReport), json);
  if (!status.ok()) return status;
  std::map<std::string, std::string> metadata(artifact->metadata().begin(),
                                              artifact->metadata().end());
  metadata["boost"] = job_.id();
  // The same weights: what continues from them is replayed as before.
  status =
      tools_.artifacts
          ->RegisterStaged(*staging, {name, v1::Artifact::MODEL, std::move(metadata), job_.owner()},
                           IfExists::kReplace, /*make_idempotency_record=*/nullptr,
                           /*go_on=*/nullptr, {.force = true, .may_see = nullptr})
          .status();
  if (status.ok()) std::move(discard).Cancel();
  return status;
}

absl::Status DistillationRun::CleanUp() {
  for (int k = 0; k < job_.ssms_size(); ++k) {
    // The rounds' trainings are recorded, but their samples are too large to stay for replays.
    const absl::Status status =
        tools_.artifacts->Delete(RoundName(k), nullptr, {.force = true, .may_see = nullptr});
    if (!status.ok() && !absl::IsNotFound(status)) return status;
  }
  return absl::OkStatus();
}

}  // namespace espalier
