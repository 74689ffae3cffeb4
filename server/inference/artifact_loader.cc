#include "server/inference/artifact_loader.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/models/model.h"
#include "ops/models/quantize.h"
#include "planner/planner.h"
#include "server/inference/remote_model_runner.h"
#include "worker/device/device.h"
#include "worker/runner/program_model_runner.h"
#include "worker/weights/weight_files.h"

namespace espalier {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;

// The largest vocabularies take some tens of megabytes as JSON.
constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;

// Texts of files that are not there stay empty.
absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(FileSystem& system, const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = system.List(folder);
  if (!names.ok()) return names.status();
  TokenizerFiles files;
  const std::tuple<const char*, std::string*, int64_t> kFiles[] = {
      {"tokenizer.json", &files.tokenizer_json, kMaxTokenizerBytes},
      {"tokenizer_config.json", &files.tokenizer_config_json, kMaxTokenizerBytes},
      {"special_tokens_map.json", &files.special_tokens_map_json, kMaxConfigBytes},
      {"generation_config.json", &files.generation_config_json, kMaxConfigBytes},
      {"chat_template.jinja", &files.chat_template_jinja, kMaxConfigBytes}};
  for (const auto& [name, text, max_bytes] : kFiles) {
    if (std::find(names->begin(), names->end(), name) == names->end()) continue;
    absl::StatusOr<std::string> read = ReadWholeFile(system, JoinPath(folder, name), max_bytes);
    if (!read.ok()) return read.status();
    *text = *std::move(read);
  }
  if (!files.tokenizer_json.empty()) return files;
  // A GGUF file may have brought its own.
  absl::StatusOr<TokenizerTexts> texts = ReadModelTokenizer(system, folder);
  if (!texts.ok()) return texts.status();
  files.tokenizer_json = std::move(texts->tokenizer);
  if (files.tokenizer_config_json.empty()) files.tokenizer_config_json = std::move(texts->config);
  return files;
}

absl::Status In(const std::string& artifact, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("artifact '", artifact, "': ", status.message()));
}

}  // namespace

absl::StatusOr<ArtifactLoader::Described> ArtifactLoader::Describe(
    const std::string& artifact) const {
  absl::StatusOr<std::string> folder = options_.folder(artifact);
  if (!folder.ok()) return folder.status();
  absl::StatusOr<std::string> config = ReadModelConfig(*files_, *folder);
  if (!config.ok()) return In(artifact, config.status());
  const absl::StatusOr<TokenizerFiles> files = ReadTokenizerFiles(*files_, *folder);
  if (!files.ok()) return In(artifact, files.status());
  absl::StatusOr<ModelDescription> description = DescribeModel(*config, *files);
  if (!description.ok()) return In(artifact, description.status());
  return Described{*std::move(folder), *std::move(description)};
}

absl::StatusOr<ServingModel> ArtifactLoader::Build(
    const Described& model, const ServingShape& shape, std::optional<WeightFormat> format,
    const AdapterFiles& adapters, AdapterFiles::Parameters* adapted, int64_t* parameters) const {
  absl::StatusOr<ServingModel> serving =
      BuildServing(*options_.operators, model.description.model, shape);
  if (!serving.ok()) return serving.status();
  if (absl::Status status = BindAndInfer(*options_.operators, 1, &serving->graph); !status.ok()) {
    return status;
  }
  if (parameters != nullptr) *parameters = CountParameters(serving->graph);
  absl::StatusOr<AdapterFiles::Parameters> added = adapters.AddTo(*options_.operators, &*serving);
  if (!added.ok()) return added.status();
  *adapted = *std::move(added);
  return ServingIn(*options_.operators, *std::move(serving), model.description.model.facts, format);
}

absl::StatusOr<std::unique_ptr<ModelRunner>> ArtifactLoader::MakeLocal(const Described& model,
                                                                       const ServingModel& serving,
                                                                       const Local& local,
                                                                       EngineParts* parts) const {
  absl::StatusOr<proto::Program> program = LowerServing(
      *options_.operators, serving.graph, {.resident_weight_bytes = local.resident_weight_bytes});
  if (!program.ok()) return program.status();
  std::shared_ptr<Device> device =
      NewCpuDevice({options_.threads, options_.memory_limit, options_.swap_dir});
  absl::StatusOr<std::unique_ptr<ProgramModelRunner>> runner = ProgramModelRunner::Create(
      *program, model.folder, static_cast<int>(model.description.model.facts.max_positions),
      device.get(), serving.weights);
  if (!runner.ok()) return runner.status();
  if (absl::Status status = local.adapters.Load(local.adapted, (*runner)->executor());
      !status.ok()) {
    return status;
  }
  parts->keep_alive.push_back(std::move(device));
  parts->kv_cache_bytes += (*runner)->kv_cache_bytes();
  return *std::move(runner);
}

absl::Status ArtifactLoader::MakeRemote(const Described& model, ServingModel serving,
                                        const ServingShape& shape, const Placement& placement,
                                        Loaded* loaded) const {
  if (options_.cluster.workers == nullptr) {
    return absl::UnimplementedError("this process serves models by itself only, not on workers");
  }
  absl::StatusOr<std::vector<proto::Program>> programs =
      LowerServing(*options_.operators, serving.graph,
                   ServingDegrees{placement.tensor_parallel, placement.pipeline_parallel});
  if (!programs.ok()) return programs.status();
  const ModelFacts& facts = model.description.model.facts;
  RemoteModel remote;
  remote.name = placement.name;
  remote.folder = model.folder;
  remote.programs = *std::move(programs);
  remote.weights = std::move(serving.weights);
  NameEverySource(serving.graph, &remote.weights);
  remote.limits.vocabulary = static_cast<int>(facts.vocab_size);
  remote.limits.kv_slots = shape.kv_slots;
  remote.limits.max_rows = shape.max_rows;
  remote.limits.max_sequences = shape.max_sequences;
  remote.limits.max_context_slots = shape.max_context_slots;
  remote.limits.max_ancestor_slots = shape.max_ancestor_slots;
  remote.limits.max_positions = static_cast<int>(facts.max_positions);
  remote.max_output_rows = shape.max_output_rows;
  absl::StatusOr<std::unique_ptr<RemoteModelRunner>> runner =
      RemoteModelRunner::Create(options_.cluster, std::move(remote), placement.may_wait);
  if (!runner.ok()) return runner.status();
  loaded->describe = [runner = runner->get()](proto::ServedModel* served) {
    const RemoteModelRunner::Placement placement = runner->placement();
    served->set_state(placement.state);
    served->mutable_workers()->Assign(placement.workers.begin(), placement.workers.end());
  };
  loaded->parts.llm = *std::move(runner);
  return absl::OkStatus();
}

absl::StatusOr<ModelLoader::Loaded> ArtifactLoader::Load(
    const std::string& llm, const std::vector<std::string>& ssms, const ServingSize& size,
    const Expansion& expansion, const Formats& formats, const Placement& placement) {
  const int count = static_cast<int>(ssms.size());
  absl::StatusOr<Described> large = Describe(llm);
  if (!large.ok()) return large.status();
  absl::StatusOr<ServingShape> shape =
      LlmShape(large->description.model.facts, size, expansion, count);
  if (!shape.ok()) return In(llm, shape.status());
  Loaded loaded;
  loaded.format = formats.llm.value_or(PackedFormat(large->description.model.facts));
  loaded.parts.tokenizer = large->description.tokenizer;
  loaded.parts.chat = large->description.chat;
  loaded.parts.generation = large->description.generation;
  const absl::StatusOr<AdapterFiles> adapters =
      AdapterFiles::Open(*files_, formats.adapters, options_.folder);
  if (!adapters.ok()) return adapters.status();
  AdapterFiles::Parameters adapted;
  absl::StatusOr<ServingModel> serving =
      Build(*large, *shape, formats.llm, *adapters, &adapted, &loaded.parameters);
  if (!serving.ok()) return In(llm, serving.status());
  if (placement.on_workers()) {
    absl::Status made = MakeRemote(*large, *std::move(serving), *shape, placement, &loaded);
    if (!made.ok()) return In(llm, made);
  } else {
    absl::StatusOr<std::unique_ptr<ModelRunner>> runner = MakeLocal(
        *large, *serving, {*adapters, adapted, formats.resident_weight_bytes}, &loaded.parts);
    if (!runner.ok()) return In(llm, runner.status());
    loaded.parts.llm = *std::move(runner);
  }
  for (const std::string& ssm : ssms) {
    absl::StatusOr<Described> small = Describe(ssm);
    if (!small.ok()) return small.status();
    absl::StatusOr<ServingShape> ssm_shape =
        SsmShape(small->description.model.facts, *shape, size, expansion, count);
    if (!ssm_shape.ok()) return In(ssm, ssm_shape.status());
    serving = Build(*small, *ssm_shape, formats.ssms, {}, &adapted, nullptr);
    if (!serving.ok()) return In(ssm, serving.status());
    absl::StatusOr<std::unique_ptr<ModelRunner>> runner =
        MakeLocal(*small, *serving, {{}, adapted}, &loaded.parts);
    if (!runner.ok()) return In(ssm, runner.status());
    loaded.parts.ssms.push_back(*std::move(runner));
  }
  return loaded;
}

}  // namespace espalier
