#include "server/inference/artifact_loader.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/models/model.h"
#include "ops/models/quantize.h"
#include "planner/planner.h"
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

absl::StatusOr<std::unique_ptr<ModelRunner>> ArtifactLoader::MakeRunner(
    const Described& model, const ServingShape& shape, std::optional<WeightFormat> format,
    EngineParts* parts, int64_t* parameters) const {
  absl::StatusOr<ServingModel> serving =
      BuildServing(*options_.operators, model.description.model, shape);
  if (!serving.ok()) return serving.status();
  if (absl::Status status = BindAndInfer(*options_.operators, 1, &serving->graph); !status.ok()) {
    return status;
  }
  if (parameters != nullptr) *parameters = CountParameters(serving->graph);
  serving =
      ServingIn(*options_.operators, *std::move(serving), model.description.model.facts, format);
  if (!serving.ok()) return serving.status();
  const Graph& graph = serving->graph;
  absl::StatusOr<proto::Program> program = LowerServing(*options_.operators, graph);
  if (!program.ok()) return program.status();
  std::shared_ptr<Device> device = NewCpuDevice({options_.threads, options_.memory_limit});
  absl::StatusOr<std::unique_ptr<ProgramModelRunner>> runner = ProgramModelRunner::Create(
      *program, model.folder, static_cast<int>(model.description.model.facts.max_positions),
      device.get(), serving->weights);
  if (!runner.ok()) return runner.status();
  parts->keep_alive.push_back(std::move(device));
  return *std::move(runner);
}

absl::StatusOr<ModelLoader::Loaded> ArtifactLoader::Load(const std::string& llm,
                                                         const std::vector<std::string>& ssms,
                                                         const ServingSize& size,
                                                         const Expansion& expansion,
                                                         const Formats& formats) {
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
  absl::StatusOr<std::unique_ptr<ModelRunner>> runner =
      MakeRunner(*large, *shape, formats.llm, &loaded.parts, &loaded.parameters);
  if (!runner.ok()) return In(llm, runner.status());
  loaded.parts.llm = *std::move(runner);
  for (const std::string& ssm : ssms) {
    absl::StatusOr<Described> small = Describe(ssm);
    if (!small.ok()) return small.status();
    absl::StatusOr<ServingShape> ssm_shape =
        SsmShape(small->description.model.facts, *shape, size, expansion, count);
    if (!ssm_shape.ok()) return In(ssm, ssm_shape.status());
    runner = MakeRunner(*small, *ssm_shape, formats.ssms, &loaded.parts, nullptr);
    if (!runner.ok()) return In(ssm, runner.status());
    loaded.parts.ssms.push_back(*std::move(runner));
  }
  return loaded;
}

}  // namespace espalier
