#include "server/inference/artifact_loader.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/models/llama.h"
#include "planner/planner.h"
#include "worker/device/device.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;

absl::StatusOr<std::string> ReadConfig(const std::string& folder) {
  std::ifstream file(folder + "/config.json", std::ios::binary);
  if (!file) return absl::InvalidArgumentError("has no config.json");
  std::ostringstream text;
  text << file.rdbuf();
  if (text.str().size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError("config.json is larger than 1 MiB");
  }
  return text.str();
}

absl::Status In(const std::string& artifact, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("artifact '", artifact, "': ", status.message()));
}

}  // namespace

absl::StatusOr<ArtifactLoader::Described> ArtifactLoader::Describe(
    const std::string& artifact) const {
  absl::StatusOr<std::string> folder = options_.folder(artifact);
  if (!folder.ok()) return folder.status();
  absl::StatusOr<std::string> config = ReadConfig(*folder);
  if (!config.ok()) return In(artifact, config.status());
  absl::StatusOr<ModelDescription> description = DescribeModel(*config);
  if (!description.ok()) return In(artifact, description.status());
  return Described{*std::move(folder), *std::move(description)};
}

absl::StatusOr<std::unique_ptr<ModelRunner>> ArtifactLoader::MakeRunner(const Described& model,
                                                                        const ServingShape& shape,
                                                                        EngineParts* parts) const {
  const LlamaConfig& config = model.description.llama;
  absl::StatusOr<Graph> graph = BuildLlamaServing(*options_.operators, config, shape);
  if (!graph.ok()) return graph.status();
  if (absl::Status status = BindAndInfer(*options_.operators, 1, &*graph); !status.ok()) {
    return status;
  }
  absl::StatusOr<proto::Program> program = LowerServing(*options_.operators, *graph);
  if (!program.ok()) return program.status();
  std::shared_ptr<Device> device = NewCpuDevice({options_.threads, options_.memory_limit});
  absl::StatusOr<std::unique_ptr<ProgramModelRunner>> runner = ProgramModelRunner::Create(
      *program, model.folder, static_cast<int>(config.max_position_embeddings), device.get());
  if (!runner.ok()) return runner.status();
  parts->keep_alive.push_back(std::move(device));
  return *std::move(runner);
}

absl::StatusOr<ModelLoader::Loaded> ArtifactLoader::Load(const std::string& llm,
                                                         const std::vector<std::string>& ssms,
                                                         const ServingSize& size,
                                                         const Expansion& expansion) {
  const int count = static_cast<int>(ssms.size());
  absl::StatusOr<Described> large = Describe(llm);
  if (!large.ok()) return large.status();
  absl::StatusOr<ServingShape> shape = LlmShape(large->description.llama, size, expansion, count);
  if (!shape.ok()) return In(llm, shape.status());
  Loaded loaded;
  loaded.parameters = CountParameters(large->description.llama);
  loaded.parts.tokenizer = large->description.tokenizer;
  absl::StatusOr<std::unique_ptr<ModelRunner>> runner = MakeRunner(*large, *shape, &loaded.parts);
  if (!runner.ok()) return In(llm, runner.status());
  loaded.parts.llm = *std::move(runner);
  for (const std::string& ssm : ssms) {
    absl::StatusOr<Described> small = Describe(ssm);
    if (!small.ok()) return small.status();
    absl::StatusOr<ServingShape> ssm_shape =
        SsmShape(small->description.llama, *shape, size, expansion, count);
    if (!ssm_shape.ok()) return In(ssm, ssm_shape.status());
    runner = MakeRunner(*small, *ssm_shape, &loaded.parts);
    if (!runner.ok()) return In(ssm, runner.status());
    loaded.parts.ssms.push_back(*std::move(runner));
  }
  return loaded;
}

}  // namespace espalier
