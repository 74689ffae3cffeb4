#include "server/inference/artifact_loader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/models/model.h"
#include "planner/planner.h"
#include "worker/device/device.h"
#include "worker/runner/program_model_runner.h"
#include "worker/weights/weight_files.h"

namespace espalier {
namespace {

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
  absl::StatusOr<ModelDescription> description = DescribeModel(*config);
  if (!description.ok()) return In(artifact, description.status());
  return Described{*std::move(folder), *std::move(description)};
}

absl::StatusOr<std::unique_ptr<ModelRunner>> ArtifactLoader::MakeRunner(const Described& model,
                                                                        const ServingShape& shape,
                                                                        EngineParts* parts,
                                                                        int64_t* parameters) const {
  absl::StatusOr<ServingModel> serving =
      BuildServing(*options_.operators, model.description.model, shape);
  if (!serving.ok()) return serving.status();
  Graph& graph = serving->graph;
  if (absl::Status status = BindAndInfer(*options_.operators, 1, &graph); !status.ok()) {
    return status;
  }
  if (parameters != nullptr) *parameters = CountParameters(graph);
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
                                                         const Expansion& expansion) {
  const int count = static_cast<int>(ssms.size());
  absl::StatusOr<Described> large = Describe(llm);
  if (!large.ok()) return large.status();
  absl::StatusOr<ServingShape> shape =
      LlmShape(large->description.model.facts, size, expansion, count);
  if (!shape.ok()) return In(llm, shape.status());
  Loaded loaded;
  loaded.parts.tokenizer = large->description.tokenizer;
  absl::StatusOr<std::unique_ptr<ModelRunner>> runner =
      MakeRunner(*large, *shape, &loaded.parts, &loaded.parameters);
  if (!runner.ok()) return In(llm, runner.status());
  loaded.parts.llm = *std::move(runner);
  for (const std::string& ssm : ssms) {
    absl::StatusOr<Described> small = Describe(ssm);
    if (!small.ok()) return small.status();
    absl::StatusOr<ServingShape> ssm_shape =
        SsmShape(small->description.model.facts, *shape, size, expansion, count);
    if (!ssm_shape.ok()) return In(ssm, ssm_shape.status());
    runner = MakeRunner(*small, *ssm_shape, &loaded.parts, nullptr);
    if (!runner.ok()) return In(ssm, runner.status());
    loaded.parts.ssms.push_back(*std::move(runner));
  }
  return loaded;
}

}  // namespace espalier
