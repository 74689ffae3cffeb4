#include "server/inference/artifact_loader.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/models/llama.h"
#include "planner/planner.h"
#include "serving/tokenizer/byte_tokenizer.h"
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

ServingShape ShapeFor(const ModelLoader::Limits& limits, int context) {
  ServingShape shape;
  shape.max_rows = std::max(limits.max_rows, limits.tree_nodes);
  shape.max_output_rows = shape.max_rows;
  shape.max_sequences = limits.max_requests;
  shape.kv_slots = limits.max_requests * (context + limits.tree_nodes);
  shape.max_context_slots = shape.kv_slots;
  // Every row may be a node of a chain-shaped tree.
  shape.max_ancestor_slots = shape.max_rows * limits.tree_nodes;
  return shape;
}

}  // namespace

absl::StatusOr<ModelLoader::Model> ArtifactLoader::Load(const std::string& artifact,
                                                        const Limits& limits) {
  const auto annotate = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("artifact '", artifact, "': ",
                                                    status.message()));
  };
  absl::StatusOr<std::string> folder = options_.folder(artifact);
  if (!folder.ok()) return folder.status();
  absl::StatusOr<std::string> text = ReadConfig(*folder);
  if (!text.ok()) return annotate(text.status());
  absl::StatusOr<LlamaConfig> config = LlamaConfigFromJson(*text);
  if (!config.ok()) return annotate(config.status());
  if (config->tokenizer != "bytes") {
    return annotate(absl::UnimplementedError(
        "config.json has no \"tokenizer\": \"bytes\"; tokenizer.json and tokenizer.model are not read "
        "yet, so only models with the byte-level tokenizer can be served"));
  }
  absl::StatusOr<std::unique_ptr<ByteTokenizer>> tokenizer =
      ByteTokenizer::Create(static_cast<int>(config->vocab_size), config->eos);
  if (!tokenizer.ok()) return annotate(tokenizer.status());
  const int longest = static_cast<int>(config->max_position_embeddings);
  if (limits.max_sequence_length > longest) {
    return annotate(absl::InvalidArgumentError(
        absl::StrCat("max_sequence_length is ", limits.max_sequence_length,
                     ", the model knows positions up to ", longest)));
  }
  const int context = limits.max_sequence_length > 0 ? limits.max_sequence_length : longest;
  absl::StatusOr<Graph> graph =
      BuildLlamaServing(*options_.operators, *config, ShapeFor(limits, context));
  if (!graph.ok()) return annotate(graph.status());
  if (absl::Status status = BindAndInfer(*options_.operators, 1, &*graph); !status.ok()) {
    return annotate(status);
  }
  absl::StatusOr<proto::Program> program = LowerServing(*options_.operators, *graph);
  if (!program.ok()) return annotate(program.status());
  std::shared_ptr<Device> device = NewCpuDevice({options_.threads, options_.memory_limit});
  absl::StatusOr<std::unique_ptr<ProgramModelRunner>> runner =
      ProgramModelRunner::Create(*program, *folder, longest, device.get());
  if (!runner.ok()) return annotate(runner.status());
  Model model;
  model.runner = *std::move(runner);
  model.tokenizer = *std::move(tokenizer);
  model.parameters = CountParameters(*config);
  model.keep_alive.push_back(std::move(device));
  return model;
}

}  // namespace espalier
