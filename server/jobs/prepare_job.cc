#include "server/jobs/prepare_job.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/file_system.h"
#include "base/nearest.h"
#include "ops/graph/autodiff.h"
#include "ops/graph/fixed_batch.h"
#include "ops/graph/graph_proto.h"
#include "ops/graph/precision.h"
#include "ops/graph/take_initial_values.h"
#include "ops/onnx/cpu_evaluator.h"
#include "ops/onnx/import.h"
#include "ops/optimizer/optimizer.h"
#include "ops/rewrite/fuse.h"
#include "server/artifacts/onnx_file.h"
#include "server/jobs/add_example_weights.h"
#include "server/jobs/add_loss_and_metrics.h"
#include "server/jobs/check_columns.h"
#include "server/jobs/fit_inputs.h"
#include "server/jobs/init_model.h"
#include "server/jobs/job_tokenizer.h"
#include "server/jobs/keep_results.h"
#include "server/jobs/prepare_stream.h"
#include "server/jobs/prepare_validation.h"
#include "server/jobs/stored_values.h"
#include "server/jobs/trained_parameters.h"
#include "server/jobs/training_dataset.h"

namespace espalier {
namespace {

constexpr int64_t kMaxBatch = 1 << 20;
constexpr int64_t kMaxSteps = int64_t{1} << 40;

absl::Status Field(const std::string& name, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat("spec.", name, ": ", problem));
}

// Decides which examples are evaluated, and when.
absl::Status SetEvaluation(const v1::TrainingSpec& spec, const Dataset& evaluated,
                           const WeightedHeads& heads, int64_t steps_per_epoch, PreparedJob* job) {
  job->unweighted = heads.unweighted;
  const bool own = spec.validation().has_dataset();
  job->evaluates = own || spec.dataset().holdout_fraction() > 0;
  if (!job->evaluates) return absl::OkStatus();
  const int64_t examples = evaluated.holdout_examples(), batch = job->batch_size;
  const int64_t rest = examples % batch;
  job->pad_evaluation = heads.all;
  job->evaluation_examples = heads.all ? examples : examples - rest;
  if (job->evaluation_examples == 0) {
    const std::string few = examples == 0 ? "" : absl::StrCat(", less than one batch of ", batch);
    if (own) {
      return Field("validation.dataset", absl::StrCat("it has ", examples, " examples", few));
    }
    return Field("dataset.holdout_fraction",
                 absl::StrCat("it keeps ", examples, " examples apart for the evaluation", few,
                              "; use 0 for none, or a larger fraction"));
  }
  if (!heads.all && rest > 0) {
    job->notes.push_back(absl::StrCat(
        "the evaluation leaves out the last ", rest, " of ", examples, own ? "" : " held-out",
        " examples, which do not fill a batch of ", batch, ": output '", heads.unweighted,
        "' is not a mean over the batch by a loss or metric operator"));
  }
  job->validate_every = ValidationPeriod(spec, steps_per_epoch);
  if (job->validate_every > job->total_steps) {
    job->notes.push_back(absl::StrCat("there is one validation, after the last step: they are ",
                                      job->validate_every, " steps apart, and there are ",
                                      job->total_steps, " steps"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> OnnxFile(const ArtifactStore& artifacts, const std::string& name) {
  absl::StatusOr<v1::Artifact> artifact = artifacts.Find(name);
  if (!artifact.ok()) return artifact.status();
  const absl::StatusOr<std::string> file =
      OnnxFileAmong({artifact->files().begin(), artifact->files().end()});
  if (!file.ok()) {
    return absl::Status(file.status().code(),
                        absl::StrCat("artifact '", name, "': ", file.status().message()));
  }
  absl::StatusOr<std::string> folder = artifacts.Folder(name);
  if (!folder.ok()) return folder.status();
  return JoinPath(*folder, *file);
}

absl::StatusOr<std::shared_ptr<const ReadableFile>> OpenOnnx(const ArtifactStore& artifacts,
                                                             const std::string& name,
                                                             std::string* folder) {
  absl::StatusOr<std::string> path = OnnxFile(artifacts, name);
  if (!path.ok()) return path.status();
  *folder = std::filesystem::path(*path).parent_path();
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = NewPosixFileSystem()->Open(*path);
  if (!file.ok()) return file.status();
  return std::shared_ptr<const ReadableFile>(*std::move(file));
}

absl::StatusOr<TrainableGraph> ImportModel(const OpRegistry& registry,
                                           const ArtifactStore& artifacts,
                                           const v1::TrainingSpec& spec, const Dataset& dataset,
                                           ImportReport* report) {
  absl::StatusOr<Objective> objective =
      ObjectiveFromProto(spec.objective(), spec.loss(), spec.metrics());
  if (!objective.ok()) return objective.status();
  LabelColumns labels;
  labels.find = [&](const std::string& input) -> std::optional<TensorType> {
    const auto named = spec.dataset().columns().find(input);
    const bool given = named != spec.dataset().columns().end();
    absl::StatusOr<const Column*> column = dataset.Find(given ? named->second : input);
    if (!column.ok()) return std::nullopt;
    return (*column)->example;
  };
  return ImportOnnxArtifact(registry, artifacts, spec.onnx_artifact(), *objective, labels,
                            spec.batch_size(), NamedForTraining(spec), report);
}

// Of an example of a language model.
absl::StatusOr<int64_t> SequenceLengthOf(const v1::TrainingSpec& spec, const Dataset& dataset) {
  const auto named = spec.dataset().columns().find("tokens");
  absl::StatusOr<const Column*> tokens =
      dataset.Find(named == spec.dataset().columns().end() ? "tokens" : named->second);
  if (!tokens.ok()) return tokens.status();
  if ((*tokens)->example.dims.size() == 1) return (*tokens)->example.dims[0];
  return Field("dataset",
               absl::StrCat("an example of column '", (*tokens)->name, "' is ",
                            ToString((*tokens)->example), ", expected a list of tokens"));
}

absl::StatusOr<TrainableGraph> SubmittedModel(const OpRegistry& registry,
                                              const v1::TrainingSpec& spec,
                                              const Dataset& dataset) {
  const auto config = spec.graph().metadata().find("config");
  if (spec.graph().nodes_size() > 0 || config == spec.graph().metadata().end()) {
    return ReadSubmittedGraph(registry, spec.graph(), spec.batch_size());
  }
  absl::StatusOr<int64_t> length = SequenceLengthOf(spec, dataset);
  if (!length.ok()) return length.status();
  absl::StatusOr<Graph> graph = LanguageModelGraph(registry, config->second, *length);
  if (!graph.ok()) return graph.status();
  return TrainableGraph{*std::move(graph), {}};
}

absl::StatusOr<TrainableGraph> ModelGraphOf(const OpRegistry& registry,
                                            const ArtifactStore& artifacts,
                                            const v1::TrainingSpec& spec, const Dataset& dataset,
                                            ImportReport* report) {
  switch (spec.model_case()) {
    case v1::TrainingSpec::kGraph:
      return SubmittedModel(registry, spec, dataset);
    case v1::TrainingSpec::kOnnxArtifact:
      return ImportModel(registry, artifacts, spec, dataset, report);
    case v1::TrainingSpec::MODEL_NOT_SET:
      break;
  }
  // Its losses were matched to its predictions when it was trained first.
  absl::StatusOr<std::optional<Graph>> own =
      InitGraphOfArtifact(registry, artifacts, spec.init_artifact());
  if (!own.ok()) return own.status();
  if (own->has_value()) return TrainableGraph{**std::move(own), {}};
  absl::StatusOr<int64_t> length = SequenceLengthOf(spec, dataset);
  if (!length.ok()) return length.status();
  absl::StatusOr<Graph> graph = InitGraph(registry, artifacts, spec.init_artifact(), *length);
  if (!graph.ok()) return graph.status();
  return TrainableGraph{*std::move(graph), {}};
}

absl::Status CheckRecord(const v1::TrainingSpec& spec) {
  const v1::RecordOptions& record = spec.record();
  const bool every = record.mode() == v1::RecordOptions::EVERY;
  if (every != (record.every_steps() > 0)) {
    return Field("record.every_steps", "a number of steps, with mode EVERY only");
  }
  if (every && spec.checkpoint_every_steps() > 0 &&
      spec.checkpoint_every_steps() != record.every_steps()) {
    return Field("record.every_steps",
                 absl::StrCat("checkpoint_every_steps is ", spec.checkpoint_every_steps(),
                              ": leave it out, as the recorded checkpoints serve both"));
  }
  if (!(record.overhead() >= 0 && record.overhead() < 1)) {
    return Field("record.overhead", "a fraction of the training time, from 0 to below 1");
  }
  if (record.max_bytes() < 0 || record.keep() < 0) {
    return Field("record.max_bytes, record.keep", "must not be negative");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSpec(const OpRegistry& registry, const v1::TrainingSpec& spec) {
  if (spec.name().size() > 256) return Field("name", "at most 256 bytes are accepted");
  if (spec.model_case() == v1::TrainingSpec::MODEL_NOT_SET && spec.init_artifact().empty()) {
    return Field("model", "give graph, onnx_artifact or init_artifact");
  }
  if (spec.model_case() == v1::TrainingSpec::kOnnxArtifact && spec.loss().empty() &&
      spec.objective().losses().empty()) {
    return Field("loss",
                 "an ONNX model needs one, such as sparse_categorical_crossentropy or "
                 "mean_squared_error");
  }
  if (spec.model_case() != v1::TrainingSpec::kOnnxArtifact &&
      (!spec.loss().empty() || spec.metrics_size() > 0 || spec.has_objective())) {
    return Field("objective, loss, metrics",
                 "they go with onnx_artifact; other models have their own");
  }
  if (spec.batch_size() <= 0 || spec.batch_size() > kMaxBatch) {
    return Field("batch_size",
                 absl::StrCat(spec.batch_size(), "; 1 to ", kMaxBatch, " are accepted"));
  }
  if ((spec.epochs() > 0) == (spec.steps() > 0) || spec.epochs() < 0 || spec.steps() < 0 ||
      spec.epochs() > kMaxSteps || spec.steps() > kMaxSteps) {
    return Field("epochs, steps", "give one of them, greater than zero");
  }
  if (absl::Status s = CheckPrecision(spec.precision(), "spec.precision"); !s.ok()) return s;
  if (spec.checkpoint_every_steps() < 0) {
    return Field("checkpoint_every_steps", "must not be negative");
  }
  if (absl::Status s = CheckRecord(spec); !s.ok()) return s;
  const v1::Dataset& dataset = spec.dataset();
  const bool streams = dataset.format() == v1::Dataset::STREAM;
  if (streams) {
    if (absl::Status s = CheckStreamFields(spec); !s.ok()) return s;
  } else if (dataset.has_stream()) {
    return Field("dataset.stream", "it goes with dataset.format STREAM");
  } else if (dataset.uri().empty()) {
    return Field("dataset.uri", "give artifact:<name>, s3://bucket/key or an absolute path");
  } else if (dataset.format() != v1::Dataset::NPZ && dataset.format() != v1::Dataset::TEXT) {
    return Field("dataset.format", "must be NPZ, TEXT or STREAM");
  }
  if (dataset.format() == v1::Dataset::TEXT &&
      (dataset.sequence_length() <= 0 || dataset.sequence_length() > (1 << 24))) {
    return Field("dataset.sequence_length", "text needs one, greater than zero");
  }
  if (!(dataset.holdout_fraction() >= 0 && dataset.holdout_fraction() < 1)) {
    return Field("dataset.holdout_fraction", "0 or more, less than 1");
  }
  if (!spec.output_model().empty()) {
    absl::Status status = CheckArtifactName(spec.output_model());
    if (!status.ok()) return Field("output_model", std::string(status.message()));
  }
  if (!v1::SearchOptions::Strategy_IsValid(spec.search().strategy())) {
    return Field("search.strategy",
                 absl::StrCat(static_cast<int>(spec.search().strategy()),
                              "; SEARCH, DATA_PARALLEL, SINGLE_DEVICE and IMPORTED are accepted"));
  }
  if (spec.search().max_devices() > 0 &&
      spec.search().pipeline_stages() > spec.search().max_devices()) {
    return Field("search.pipeline_stages",
                 absl::StrCat("is ", spec.search().pipeline_stages(), ", search.max_devices ",
                              spec.search().max_devices(), "; each stage needs a device"));
  }
  const int most = spec.search().strategy() == v1::SearchOptions::SINGLE_DEVICE
                       ? 1
                       : spec.search().max_devices();
  if (spec.min_devices() < 0 || (most > 0 && spec.min_devices() > most)) {
    return Field("min_devices", absl::StrCat("is ", spec.min_devices(), "; accepted: 0 to ",
                                             most > 0 ? absl::StrCat(most,
                                                                     ", the most that it may "
                                                                     "use")
                                                      : "the number of workers"));
  }
  if (spec.search().strategy() == v1::SearchOptions::IMPORTED && !spec.search().has_imported()) {
    return Field("search.imported", "strategy IMPORTED needs the plan");
  }
  if (absl::Status s = CheckValidationFields(spec); !s.ok()) return s;
  absl::Status status = CheckOptimizer(registry, spec.optimizer());
  return status.ok() ? status : absl::InvalidArgumentError(absl::StrCat("spec.", status.message()));
}

absl::StatusOr<Graph> GraphToPlan(const OpRegistry& registry, const Graph& bound, DType precision,
                                  std::map<std::string, int>* fused) {
  // Fuse first: casts would hide the patterns of the rules.
  absl::StatusOr<Graph> graph = Fuse(registry, bound, fused);
  if (!graph.ok()) return graph.status();
  return WithPrecision(registry, *graph, precision);
}

absl::StatusOr<TrainableGraph> ImportOnnxArtifact(
    const OpRegistry& registry, const ArtifactStore& artifacts, const std::string& name,
    const Objective& objective, const LabelColumns& labels, int64_t batch,
    const std::set<std::string>& parameters, ImportReport* report) {
  ImportOptions options;
  options.parameters = parameters;
  options.has_data = [&labels](const std::string& input) { return labels.find(input).has_value(); };
  options.evaluator = CpuEvaluator();
  absl::StatusOr<std::shared_ptr<const ReadableFile>> file =
      OpenOnnx(artifacts, name, &options.folder);
  if (!file.ok()) return file.status();
  absl::StatusOr<ImportedModel> model = ImportOnnxFile(registry, *std::move(file), options, report);
  if (!model.ok()) {
    return absl::Status(model.status().code(),
                        absl::StrCat("ONNX artifact '", name, "': ", model.status().message()));
  }
  int64_t fixed = FixedBatchOf(model->graph);
  if (fixed > kMaxBatch) fixed = 0;
  absl::StatusOr<std::vector<std::string>> notes =
      AddLossAndMetrics(registry, objective, labels, fixed > 0 ? fixed : batch, &model->graph);
  if (!notes.ok()) return notes.status();
  if (fixed > 0 && fixed != batch) {
    notes->push_back(absl::StrCat("the file was exported for a batch of ", fixed,
                                  ", which is trained instead of ", batch,
                                  "; for others, export it with a dynamic batch"));
  }
  return TrainableGraph{std::move(model->graph), *std::move(notes), fixed,
                        std::move(model->values)};
}

std::vector<v1::DryRunReply::Unsupported> FindUnsupported(const OpRegistry& registry,
                                                          const ArtifactStore& artifacts,
                                                          const v1::TrainingSpec& spec) {
  std::vector<v1::DryRunReply::Unsupported> found;
  if (spec.model_case() == v1::TrainingSpec::kOnnxArtifact) {
    std::string folder;
    absl::StatusOr<std::shared_ptr<const ReadableFile>> file =
        OpenOnnx(artifacts, spec.onnx_artifact(), &folder);
    if (!file.ok()) return found;
    for (const UnsupportedOperator& op : UnsupportedOperators(registry, *std::move(file))) {
      found.emplace_back();
      found.back().set_op(op.op);
      found.back().set_nodes(op.nodes);
      found.back().set_first_node(op.first_node);
      found.back().set_reason(op.reason);
    }
    return found;
  }
  std::map<std::string, size_t> index;
  for (const v1::Node& node : spec.graph().nodes()) {
    if (registry.Find(node.op()) != nullptr) continue;
    const auto [at, inserted] = index.try_emplace(node.op(), found.size());
    if (inserted) {
      found.emplace_back();
      found.back().set_op(node.op());
      found.back().set_first_node(node.name());
      found.back().set_reason("there is no such operator; docs/reference/operators.md lists them");
    }
    found[at->second].set_nodes(found[at->second].nodes() + 1);
  }
  return found;
}

DType PrecisionOf(v1::DataType precision) {
  if (precision == v1::BF16) return DType::kBF16;
  return precision == v1::F16 ? DType::kF16 : DType::kF32;
}

absl::Status CheckPrecision(v1::DataType precision, const std::string& field) {
  if (precision == v1::DATA_TYPE_UNSPECIFIED || precision == v1::F32 || precision == v1::BF16 ||
      precision == v1::F16) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(field, ": F32, BF16 and F16 are accepted"));
}

absl::StatusOr<PreparedJob> PrepareJob(const OpRegistry& registry, const ArtifactStore& artifacts,
                                       const DatasetRoots& roots, const v1::TrainingSpec& spec,
                                       const SessionParts* session) {
  absl::Status status = CheckSpec(registry, spec);
  if (!status.ok()) return status;
  absl::StatusOr<JobTokenizer> tokenizer = LoadJobTokenizer(artifacts, spec);
  if (!tokenizer.ok()) return tokenizer.status();
  PreparedJob job;
  job.notes = std::move(tokenizer->notes);
  absl::StatusOr<std::shared_ptr<const Dataset>> dataset;
  const bool streams = spec.dataset().format() == v1::Dataset::STREAM;
  if (session != nullptr && session->columns != nullptr) {
    dataset = session->columns;
  } else if (streams) {
    dataset = OutlineOfColumns(registry, spec, spec.dataset().stream().columns());
  } else if (tokenizer->tokenizer != nullptr && spec.dataset().format() == v1::Dataset::TEXT) {
    absl::StatusOr<TokenizedText> text = TokenizeText(spec.dataset(), artifacts, roots, *tokenizer);
    if (!text.ok()) return text.status();
    job.notes.push_back(std::move(text->note));
    dataset = job.tokens = std::move(text->dataset);
  } else {
    dataset = OutlineDataset(spec.dataset(), artifacts, roots);
  }
  if (!dataset.ok()) return dataset.status();
  absl::StatusOr<ValidationExamples> evaluated =
      OpenValidation(spec, artifacts, roots, *tokenizer, *dataset);
  if (!evaluated.ok()) return evaluated.status();
  job.validation_tokens = std::move(evaluated->tokens);
  ImportReport report;
  absl::StatusOr<TrainableGraph> model =
      ModelGraphOf(registry, artifacts, spec, **dataset, &report);
  if (!model.ok()) return model.status();
  Graph* const graph = &model->graph;
  if (graph->FindOutput("loss") == kNoValue) {
    return absl::InvalidArgumentError(
        "the graph has no output named 'loss', which is what training minimises");
  }
  const int64_t batch = model->batch > 0 ? model->batch : spec.batch_size();
  job.batch_size = batch;
  job.notes.insert(job.notes.end(), model->notes.begin(), model->notes.end());
  NoteUnreached(registry, *graph, &job.notes);
  job.initial_values = TakeInitialValues(graph);
  std::move(model->initial_values.begin(), model->initial_values.end(),
            std::back_inserter(job.initial_values));
  absl::StatusOr<std::vector<v1::ParameterUse>> uses = ChooseTrained(spec, report, graph);
  if (!uses.ok()) return uses.status();
  job.parameter_uses = *std::move(uses);
  if (absl::Status s = CheckGroups(*graph, spec.optimizer()); !s.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("spec.", s.message()));
  }
  if (std::string note = DoubtsOf(job.parameter_uses, report); !note.empty()) {
    job.notes.push_back(std::move(note));
  }
  job.notes.insert(job.notes.end(), report.notes.begin(), report.notes.end());
  job.model = *graph;
  if (session != nullptr) {
    status = KeepResults(session->keep, graph, &job.notes);
    if (!status.ok()) return status;
  }
  if (!spec.init_artifact().empty()) {
    absl::StatusOr<ArtifactFolder> folder =
        InitFolder(registry, artifacts, spec.init_artifact(), *graph);
    if (!folder.ok()) return folder.status();
    job.init_folder.emplace(*std::move(folder));
  }
  status = BindAndInfer(registry, batch, graph);
  if (!status.ok()) return status;
  for (const auto& [name, value] : graph->outputs) {
    const Value& output = graph->value(value);
    if (output.producer == kNoNode || output.producer_output != 0) continue;
    const OpDef* producer = registry.Find(graph->node(output.producer).op);
    if (producer->finish != nullptr) job.finishes[name] = producer->finish;
  }
  std::map<std::string, std::string> given(spec.dataset().columns().begin(),
                                           spec.dataset().columns().end());
  for (const Value& value : graph->values()) {
    if (value.kind == ValueKind::kParameter && value.trainable) {
      job.parameters += value.type.num_elements();
    }
    if (value.kind != ValueKind::kInput) continue;
    auto it = given.find(value.name);
    job.columns[value.name] = it == given.end() ? value.name : it->second;
    if (it != given.end()) given.erase(it);
  }
  if (!given.empty()) {
    std::vector<std::string> inputs;
    for (const auto& [input, column] : job.columns) inputs.push_back(input);
    const std::string& unknown = given.begin()->first;
    return Field("dataset.columns",
                 absl::StrCat("the graph has no input '", unknown, "'; it has '",
                              absl::StrJoin(inputs, "', '"), "'", DidYouMean(unknown, inputs)));
  }
  for (const v1::Regularizer& regularizer : spec.optimizer().regularizers()) {
    const std::vector<Value>& values = graph->values();
    const bool used = std::any_of(values.begin(), values.end(), [&](const Value& value) {
      return value.kind == ValueKind::kParameter && value.trainable &&
             Applies(regularizer, value.name);
    });
    if (!used) {
      return Field("optimizer.regularizers", absl::StrCat("the graph has no trained parameter '",
                                                          regularizer.parameter(), "'"));
    }
  }
  status = FitInputs(registry, job.columns, **dataset, &*graph);
  if (!status.ok()) return status;
  status = CheckColumns(registry, *graph, job.columns, **dataset);
  if (!status.ok()) return status;
  if (spec.validation().has_dataset()) {
    status = CheckColumns(registry, *graph, job.columns, *evaluated->dataset);
    if (!status.ok()) return Field("validation.dataset", std::string(status.message()));
  }
  if (streams) SetStreamColumns(registry, *graph, job.columns, &job.stream);
  // A stream is one epoch.
  const int64_t examples = streams ? spec.steps() * batch : (*dataset)->training_examples();
  const int64_t steps_per_epoch = examples / batch;
  if (steps_per_epoch == 0) {
    return Field("batch_size", absl::StrCat(batch, " is more than the ", examples,
                                            " examples in the training part of the dataset"));
  }
  const WeightedHeads heads = AddExampleWeights(registry, batch, &*graph, &job.columns);
  job.steps_per_epoch = steps_per_epoch;
  job.total_steps = spec.steps() > 0 ? spec.steps() : spec.epochs() * steps_per_epoch;
  status = SetEvaluation(spec, *evaluated->dataset, heads, steps_per_epoch, &job);
  if (!status.ok()) return status;
  if (spec.has_early_stopping()) {
    absl::StatusOr<v1::EarlyStopping> rule = ResolveEarlyStopping(registry, *graph, spec);
    if (!rule.ok()) return rule.status();
    job.early_stopping = *std::move(rule);
  }
  if (spec.dataset().has_shuffle() && !spec.dataset().shuffle() && examples % batch != 0) {
    job.notes.push_back(absl::StrCat("the last ", examples % batch, " of ", examples,
                                     " training examples do not fill a batch of ", batch,
                                     ", and without shuffling no epoch trains on them"));
  }
  job.tokens_per_step = static_cast<double>(batch);
  if (spec.dataset().sequence_length() > 0) {
    job.tokens_per_step *= static_cast<double>(spec.dataset().sequence_length());
  }
  job.optimizer = spec.optimizer();
  if (job.optimizer.learning_rate().total_steps() <= 0) {
    job.optimizer.mutable_learning_rate()->set_total_steps(job.total_steps);
  }
  if (spec.precision() == v1::F16) job.optimizer.mutable_loss_scale();
  if (job.optimizer.has_loss_scale())
    CompleteLossScale(registry, job.optimizer.mutable_loss_scale());
  absl::StatusOr<Graph> planned =
      GraphToPlan(registry, *graph, PrecisionOf(spec.precision()), &job.fused);
  if (!planned.ok()) return planned.status();
  // A gradient that does not exist is found before the job is queued.
  if (absl::Status s = Differentiate(registry, *planned).status(); !s.ok()) return s;
  job.graph = *std::move(planned);
  return job;
}

}  // namespace espalier
