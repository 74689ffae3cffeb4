#include "server/inference/models/artifact_loader.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <deque>
#include <future>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/machine_memory.h"
#include "models/model.h"
#include "models/quantize.h"
#include "models/weights/native_format.h"
#include "models/weights/weight_files.h"
#include "ops/graph/graph_proto.h"
#include "planner/planner.h"
#include "server/inference/models/model_folder.h"
#include "server/inference/placement/choose_placement.h"
#include "serving/models/check_same_vocabulary.h"
#include "serving/models/read_tokenizer_files.h"
#include "serving/runner/vocabulary_resizing_runner.h"
#include "worker/device/device.h"
#include "worker/measure.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

constexpr int kMaxConcurrentSteps = 8;  // in a placement search

int64_t BytesOf(const v1::TensorSpec& spec) {
  int64_t bytes = SizeOf(FromProto(spec.dtype()));
  for (int64_t d : spec.dims()) bytes *= d;
  return bytes;
}

// Returns whether the placements share a worker ID; such workers may be gone.
bool ShareWorker(const v1::ModelPlacement& a, const v1::ModelPlacement& b) {
  const auto& there = b.workers();
  return std::any_of(a.workers().begin(), a.workers().end(), [&](const std::string& worker) {
    return std::find(there.begin(), there.end(), worker) != there.end();
  });
}

absl::Status InArtifact(const std::string& artifact, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("artifact '", artifact, "': ", status.message()));
}

// Returns the file tensors that a parameter consists of.
std::vector<std::string> TensorsOf(const std::string& parameter, const WeightMap& weights) {
  const auto source = weights.sources.find(parameter);
  if (source == weights.sources.end()) return {parameter};
  std::vector<std::string> tensors;
  for (const WeightSlice& piece : source->second.pieces) tensors.push_back(piece.tensor);
  return tensors;
}

// Adds to an out-of-memory error how to make the KV cache smaller.
absl::Status LoadError(const std::string& artifact, const ServingShape& shape,
                       const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return InArtifact(artifact, status);
  return InArtifact(artifact,
                    absl::ResourceExhaustedError(absl::StrCat(
                        status.message(), "; its KV cache is for ", shape.kv_slots,
                        " tokens: kv_cache_tokens or max_sequence_length make it smaller")));
}

const std::string& VersionIn(const ModelLoader::Formats& formats, const std::string& artifact) {
  const auto version = formats.versions.find(artifact);
  return version == formats.versions.end() ? artifact : version->second;
}

}  // namespace

ArtifactLoader::ArtifactLoader(ArtifactLoaderOptions options)
    : options_(std::move(options)),
      memory_(std::make_shared<MemoryBudget>(options_.memory_limit > 0 ? options_.memory_limit
                                                                       : DefaultMemoryLimit())) {}

absl::StatusOr<ModelDescription> ArtifactLoader::Describe(const std::string& artifact) const {
  const absl::StatusOr<Described> described = BeginToDescribe(artifact, artifact);
  if (!described.ok()) return described.status();
  return described->description.get();
}

absl::StatusOr<ArtifactLoader::Described> ArtifactLoader::BeginToDescribe(
    const std::string& artifact, const std::string& version) const {
  absl::StatusOr<ArtifactFolder> folder = options_.folder(version);
  if (!folder.ok()) return folder.status();
  absl::StatusOr<std::string> config = ReadModelConfig(*files_, folder->path());
  if (!config.ok()) return InArtifact(artifact, config.status());
  absl::StatusOr<LanguageModel> model = ReadModel(*config);
  if (!model.ok()) return InArtifact(artifact, model.status());
  auto description = [files = files_.get(), artifact, path = folder->path(),
                      model = *model]() -> absl::StatusOr<ModelDescription> {
    const absl::StatusOr<TokenizerFiles> texts = ReadTokenizerFiles(*files, path);
    if (!texts.ok()) return InArtifact(artifact, texts.status());
    absl::StatusOr<ModelDescription> made = DescribeModel(model, *texts);
    if (!made.ok()) return InArtifact(artifact, made.status());
    return made;
  };
  return Described{*std::move(folder), *std::move(model),
                   std::async(std::launch::async, std::move(description)).share()};
}

absl::StatusOr<std::vector<ArtifactLoader::ModelToLoad>> ArtifactLoader::DescribeAll(
    const std::string& llm, const std::vector<std::string>& ssms, const ServingSize& size,
    const Expansion& expansion, const Formats& formats) const {
  const int count = static_cast<int>(ssms.size());
  std::vector<ModelToLoad> parts;
  std::vector<std::string> artifacts = {llm};
  artifacts.insert(artifacts.end(), ssms.begin(), ssms.end());
  for (const std::string& artifact : artifacts) {
    absl::StatusOr<Described> model = BeginToDescribe(artifact, VersionIn(formats, artifact));
    if (!model.ok()) return model.status();
    const ModelFacts& facts = model->language_model.facts;
    absl::StatusOr<ServingShape> shape =
        parts.empty() ? LlmShape(facts, size, expansion, count)
                      : SsmShape(facts, parts[0].shape, size, expansion, count);
    if (!shape.ok()) return InArtifact(artifact, shape.status());
    if (!parts.empty()) {
      const absl::StatusOr<ModelDescription>& large = parts[0].model.description.get();
      if (!large.ok()) return large.status();
      const absl::StatusOr<ModelDescription>& small = model->description.get();
      if (!small.ok()) return small.status();
      absl::Status same = CheckSameVocabulary(parts[0].artifact, *large, artifact, *small);
      if (!same.ok()) return same;
    }
    if (facts.short_positions > 0 && shape->max_positions > facts.short_positions) {
      spdlog::warn(
          "artifact {}: served for {} tokens, it turns all of them by rope_scaling's frequencies "
          "(longrope, dynamic) for more than {}, as vLLM does; transformers would take others for "
          "shorter sequences: those are had by a max_sequence_length of {}",
          artifact, shape->max_positions, facts.short_positions, facts.short_positions);
    } else if (parts.empty() && size.max_sequence_length == 0 &&
               facts.default_positions() < facts.max_positions) {
      spdlog::info(
          "artifact {}: served for {} tokens, up to where rope_scaling (dynamic) changes nothing; "
          "a "
          "max_sequence_length of up to {} lengthens that, and turns all sequences otherwise",
          artifact, shape->max_positions, facts.max_positions);
    }
    const std::optional<WeightFormat> given = parts.empty() ? formats.llm : formats.ssms;
    const bool packed = facts.packed_bits != 0;
    const WeightFormat format = given.value_or(PackedFormat(facts));
    ModelToLoad part{artifact, *std::move(model), *shape, format};
    if (!given.has_value() && !packed) {
      absl::StatusOr<NativeFormats> own = NativeFormats::Read(*files_, part.model.folder.path());
      if (!own.ok()) return InArtifact(artifact, own.status());
      part.format = own->dominant();
      part.own = std::make_shared<NativeFormats>(*std::move(own));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

absl::StatusOr<ServingModel> ArtifactLoader::Build(const ModelToLoad& part,
                                                   const ServingShape& shape,
                                                   const LoraAdapters& adapters,
                                                   LoraAdapters::Parameters* adapted,
                                                   int64_t* parameters) const {
  const LanguageModel& model = part.model.language_model;
  absl::StatusOr<ServingModel> serving = BuildServing(*options_.operators, model, shape);
  if (!serving.ok()) return serving.status();
  if (absl::Status status = BindAndInfer(*options_.operators, 1, &serving->graph); !status.ok()) {
    return status;
  }
  if (parameters != nullptr) *parameters = CountParameters(serving->graph);
  absl::StatusOr<LoraAdapters::Parameters> added = adapters.AddTo(*options_.operators, &*serving);
  if (!added.ok()) return added.status();
  *adapted = *std::move(added);
  if (part.own == nullptr) {
    return ToServingFormat(*options_.operators, *std::move(serving), model.facts, part.format);
  }
  const auto formats = [own = part.own, weights = serving->weights](const std::string& parameter) {
    return own->Of(TensorsOf(parameter, weights));
  };
  return QuantizeServing(*options_.operators, *std::move(serving), formats);
}

absl::StatusOr<std::unique_ptr<ModelRunner>> ArtifactLoader::MakeLocal(const ModelToLoad& part,
                                                                       const ServingModel& serving,
                                                                       const Local& local,
                                                                       EngineParts* parts) const {
  absl::StatusOr<v1::Program> program = LowerServing(
      *options_.operators, serving.graph, {.resident_weight_bytes = local.resident_weight_bytes});
  if (!program.ok()) return program.status();
  std::shared_ptr<Device> device = NewCpuDevice(
      {.threads = options_.threads, .swap_folder = options_.swap_dir, .budget = memory_});
  WeightLoadOptions loading;
  loading.cancelled = [&part] { return part.model.IsKnownToFail(); };
  absl::StatusOr<std::unique_ptr<ProgramModelRunner>> runner =
      ProgramModelRunner::Create(*program, part.model.folder.path(), part.shape.max_positions,
                                 device.get(), serving.weights, loading);
  if (!runner.ok()) return runner.status();
  if (absl::Status status = local.adapters.Load(local.adapted, (*runner)->executor());
      !status.ok()) {
    return status;
  }
  parts->keep_alive.push_back(std::move(device));
  parts->kv_cache_bytes += (*runner)->kv_cache_bytes();
  return *std::move(runner);
}

absl::StatusOr<std::unique_ptr<RemoteModelRunner>> ArtifactLoader::MakeRemote(
    const ModelToLoad& part, ServingModel serving, const Remote& remote, EngineParts* parts) const {
  if (options_.cluster.workers == nullptr) {
    return absl::UnimplementedError("this process serves models by itself only, not on workers");
  }
  absl::StatusOr<std::vector<v1::Program>> programs =
      LowerServing(*options_.operators, serving.graph,
                   ServingDegrees{remote.place.tensor_parallel(), remote.place.pipeline_parallel()},
                   {.resident_weight_bytes = remote.resident_weight_bytes});
  if (!programs.ok()) return programs.status();
  const ModelFacts& facts = part.model.language_model.facts;
  RemoteModel model;
  model.name = remote.name;
  model.folder = options_.cluster.data_folder->NameOf(part.model.folder.path());
  model.programs = *std::move(programs);
  model.preferred.assign(remote.place.workers().begin(), remote.place.workers().end());
  model.group = remote.group;
  model.drafts = remote.drafts;
  model.prefers_shared = remote.prefers_shared;
  model.weights = std::move(serving.weights);
  AddImplicitSources(serving.graph, &model.weights);
  for (const std::string& folder : remote.adapters.folders()) {
    model.adapter_folders.push_back(options_.cluster.data_folder->NameOf(folder));
  }
  model.adapters = remote.adapted;
  model.limits.vocabulary = static_cast<int>(facts.vocab_size);
  model.limits.kv_slots = part.shape.kv_slots;
  model.limits.max_rows = part.shape.max_rows;
  model.limits.max_sequences = part.shape.max_sequences;
  model.limits.max_context_slots = part.shape.max_context_slots;
  model.limits.max_ancestor_slots = part.shape.max_ancestor_slots;
  model.limits.max_positions = part.shape.max_positions;
  model.limits.adapters = remote.adapters.count();
  model.limits.concurrent_steps = remote.concurrent_steps;
  for (const auto& [name, value] : serving.graph.outputs) {
    if (name != "hidden") continue;
    model.limits.hidden = static_cast<int>(serving.graph.value(value).type.dims.back());
  }
  model.max_output_rows = part.shape.max_output_rows;
  for (const v1::Program& program : model.programs) {
    for (const v1::Buffer& buffer : program.buffers()) {
      if (buffer.kind() == v1::PERSISTENT) parts->kv_cache_bytes += BytesOf(buffer.spec());
    }
  }
  return RemoteModelRunner::Create(options_.cluster, std::move(model), remote.may_wait);
}

absl::StatusOr<v1::Device> ArtifactLoader::MeasureThisProcess() {
  if (!this_process_.has_value()) {
    const std::unique_ptr<Device> device =
        NewCpuDevice({options_.threads, memory_->limit(), options_.swap_dir});
    absl::StatusOr<v1::Device> measured = Calibrate(device.get());
    if (!measured.ok()) return measured.status();
    this_process_ = *std::move(measured);
  }
  // 0 would mean unlimited.
  this_process_->set_memory_bytes(std::max<int64_t>(1, memory_->left()));
  return *this_process_;
}

absl::Status ArtifactLoader::DecidePlacement(const std::vector<ModelToLoad>& parts,
                                             const LoraAdapters& adapters,
                                             const Expansion& expansion, const Placement& placement,
                                             int64_t resident_weight_bytes, Loaded* loaded) {
  const int ssms = static_cast<int>(parts.size()) - 1;
  const int requests = placement.expected_requests;
  PlacementRequest request;
  request.registry = options_.operators;
  if (options_.cluster.workers != nullptr) {
    request.workers = options_.cluster.workers->Idle();
    request.link = options_.cluster.workers->MeasuredLink();
  }
  const int most =
      placement.concurrent_steps > 0 ? placement.concurrent_steps : kMaxConcurrentSteps;
  const int shares = std::min({requests, most, static_cast<int>(request.workers.size())});
  // Per model: the largest step, an expected one, and steps for shares of the requests.
  std::deque<ServingModel> built;
  const LoraAdapters none;
  for (size_t m = 0; m < parts.size(); ++m) {
    const ModelToLoad& part = parts[m];
    const auto build = [&](const ServingShape& shape) -> absl::StatusOr<const Graph*> {
      LoraAdapters::Parameters adapted;
      absl::StatusOr<ServingModel> model =
          Build(part, shape, m > 0 ? none : adapters, &adapted, nullptr);
      if (!model.ok()) return InArtifact(part.artifact, model.status());
      built.push_back(*std::move(model));
      return &built.back().graph;
    };
    PlacedModel placed;
    placed.name = part.artifact;
    placed.resident_weight_bytes = m == 0 ? resident_weight_bytes : 0;
    absl::StatusOr<const Graph*> full = build(part.shape);
    if (!full.ok()) return full.status();
    placed.full = *full;
    for (int share = 1; share <= std::max(1, shares); ++share) {
      const ExpectedStep expected =
          ExpectStep(part.shape, expansion, ssms, (requests + share - 1) / share, m > 0);
      absl::StatusOr<const Graph*> step = build(expected.shape);
      if (!step.ok()) return step.status();
      if (share > 1) {
        placed.concurrent.push_back(*step);
      } else {
        placed.step = *step;
        placed.steps = expected.steps;
      }
    }
    request.models.push_back(std::move(placed));
  }
  std::vector<v1::Device> devices;
  for (const Member& member : request.workers) devices.push_back(member.device);
  if (options_.communication) request.communication = options_.communication(devices);
  absl::StatusOr<v1::Device> own = MeasureThisProcess();
  if (!own.ok()) return own.status();
  request.own = *std::move(own);
  request.tokens_per_round = ExpectedTokens(expansion, ssms, requests);
  absl::StatusOr<PlacementDecision> places = ChoosePlacement(request);
  if (!places.ok()) return places.status();
  loaded->placements = std::move(places->chosen);
  loaded->candidates = std::move(places->candidates);
  return absl::OkStatus();
}

absl::StatusOr<ModelLoader::Loaded> ArtifactLoader::Load(
    const std::string& llm, const std::vector<std::string>& ssms, const ServingSize& size,
    const Expansion& expansion, const Formats& formats, const Placement& placement) {
  ServingSize fitting = size;
  if (size.kv_cache_tokens == 0) fitting.kv_cache_tokens = placement.fitted_kv_cache_tokens;
  for (;;) {
    const bool reduced = fitting.kv_cache_tokens != size.kv_cache_tokens;
    const absl::StatusOr<std::vector<ModelToLoad>> parts =
        DescribeAll(llm, ssms, fitting, expansion, formats);
    // A size that fit once may be too small for a changed artifact.
    if (absl::IsInvalidArgument(parts.status()) && reduced &&
        fitting.kv_cache_tokens == placement.fitted_kv_cache_tokens) {
      fitting = size;
      continue;
    }
    if (!parts.ok()) return parts.status();
    absl::StatusOr<Loaded> loaded = LoadSized(*parts, expansion, formats, placement);
    if (loaded.ok()) loaded->kv_cache_reduced = reduced;
    const ServingShape& shape = (*parts)[0].shape;
    const int one = shape.max_context_slots / std::max(1, size.max_requests);
    if (loaded.ok() || !absl::IsResourceExhausted(loaded.status()) || size.kv_cache_tokens > 0 ||
        shape.kv_slots <= one || (*parts)[0].model.IsKnownToFail()) {
      return loaded;
    }
    fitting.kv_cache_tokens = std::max(shape.kv_slots / 2, one);
  }
}

absl::StatusOr<ModelLoader::Loaded> ArtifactLoader::LoadSized(const std::vector<ModelToLoad>& parts,
                                                              const Expansion& expansion,
                                                              const Formats& formats,
                                                              const Placement& placement) {
  Loaded loaded;
  loaded.kv_cache_tokens = parts[0].shape.kv_slots;
  loaded.format = parts[0].format;
  const auto sentence = ReadSentenceTransformersFiles(*files_, parts[0].model.folder.path());
  if (!sentence.ok()) return InArtifact(parts[0].artifact, sentence.status());
  loaded.parts.similarity = CheckSentenceEmbeddings(*sentence);
  const auto hold = [&](const ArtifactFolder& folder) {
    loaded.parts.keep_alive.push_back(std::make_shared<ArtifactFolder>(folder));
  };
  for (const ModelToLoad& part : parts) hold(part.model.folder);
  const auto adapter_folder = [&](const std::string& artifact) -> absl::StatusOr<std::string> {
    absl::StatusOr<ArtifactFolder> folder = options_.folder(VersionIn(formats, artifact));
    if (!folder.ok()) return folder.status();
    hold(*folder);
    return folder->path();
  };
  const absl::StatusOr<LoraAdapters> given =
      LoraAdapters::Open(*files_, formats.adapters, adapter_folder);
  if (!given.ok()) return given.status();
  loaded.placements = placement.models;
  if (placement.models.empty()) {
    absl::Status chosen = DecidePlacement(parts, *given, expansion, placement,
                                          formats.resident_weight_bytes, &loaded);
    if (!chosen.ok()) return chosen;
  }
  if (loaded.placements.size() != parts.size()) {
    return absl::InternalError(
        absl::StrCat(loaded.placements.size(), " places for ", parts.size(), " models"));
  }
  // Concurrent steps need the same order on all workers; an SSM that shares workers with the LLM
  // would run between its steps on one and after them on another.
  const bool alone =
      std::all_of(loaded.placements.begin() + 1, loaded.placements.end(),
                  [](const v1::ModelPlacement& place) { return place.tensor_parallel() == 0; });
  const LoraAdapters none;
  std::vector<RemoteModelRunner*> remote(parts.size(), nullptr);
  const auto group = std::make_shared<ServingGroup>(
      placement.name, /*here=*/loaded.placements[0].tensor_parallel() == 0);
  for (size_t m = 0; m < parts.size(); ++m) {
    const ModelToLoad& part = parts[m];
    const LoraAdapters& adapters = m == 0 ? *given : none;
    LoraAdapters::Parameters adapted;
    absl::StatusOr<ServingModel> serving =
        Build(part, part.shape, adapters, &adapted, m == 0 ? &loaded.parameters : nullptr);
    if (!serving.ok()) return InArtifact(part.artifact, serving.status());
    const int64_t resident_weight_bytes = m == 0 ? formats.resident_weight_bytes : 0;
    std::unique_ptr<ModelRunner> runner;
    const std::shared_future<absl::StatusOr<ModelDescription>>& description =
        part.model.description;
    if (const v1::ModelPlacement& place = loaded.placements[m]; place.tensor_parallel() > 0) {
      // Workers are not asked to load a model that has no tokenizer.
      if (!description.get().ok()) return description.get().status();
      // Cannot clash: names of served models have no slash.
      const std::string name =
          m == 0 ? placement.name : absl::StrCat(placement.name, "/ssm", m - 1);
      auto made = MakeRemote(part, *std::move(serving),
                             {.name = name,
                              .place = place,
                              .adapters = adapters,
                              .adapted = adapted,
                              .resident_weight_bytes = resident_weight_bytes,
                              .concurrent_steps = m == 0 && alone ? place.pipeline_parallel() : 1,
                              .group = group,
                              .drafts = m > 0,
                              .prefers_shared = m > 0 && ShareWorker(place, loaded.placements[0]),
                              .may_wait = placement.may_wait},
                             &loaded.parts);
      if (!made.ok()) return LoadError(part.artifact, part.shape, made.status());
      remote[m] = made->get();
      runner = *std::move(made);
    } else {
      auto made =
          MakeLocal(part, *serving, {adapters, adapted, resident_weight_bytes}, &loaded.parts);
      if (!description.get().ok()) return description.get().status();
      if (!made.ok()) return LoadError(part.artifact, part.shape, made.status());
      runner = *std::move(made);
    }
    const auto vocabulary = static_cast<int>(parts[0].model.language_model.facts.vocab_size);
    if (runner->limits().vocabulary != vocabulary) {
      runner = std::make_unique<VocabularyResizingRunner>(std::move(runner), vocabulary);
    }
    if (m == 0) {
      loaded.parts.llm = std::move(runner);
    } else {
      loaded.parts.ssms.push_back(std::move(runner));
    }
  }
  const ModelDescription& description = *parts[0].model.description.get();
  loaded.parts.tokenizer = description.tokenizer;
  loaded.parts.chat = description.chat;
  loaded.parts.generation = description.generation;
  loaded.parts.tokenizer_config = description.tokenizer_config;
  loaded.describe = [remote](v1::ServedModel* served) {
    for (size_t m = 0; m < remote.size(); ++m) {
      if (remote[m] == nullptr) continue;
      const RemoteModelRunner::Placement now = remote[m]->placement();
      if (m == 0) {
        served->set_state(now.state);
        served->mutable_workers()->Assign(now.workers.begin(), now.workers.end());
        continue;
      }
      v1::ModelPlacement* place = served->mutable_ssm_placements(static_cast<int>(m) - 1);
      place->set_state(now.state);
      place->mutable_workers()->Assign(now.workers.begin(), now.workers.end());
    }
  };
  return loaded;
}

}  // namespace espalier
