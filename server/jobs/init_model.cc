#include "server/jobs/init_model.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "models/model.h"
#include "models/weights/weight_files.h"
#include "ops/graph/graph_proto.h"

namespace espalier {
namespace {

constexpr int64_t kMaxSequence = 1 << 24;
constexpr int64_t kMaxGraphBytes = int64_t{1} << 30;
constexpr char kGraphFile[] = "graph.pb";  // ExportModel writes it

absl::Status In(const std::string& artifact, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("spec.init_artifact '", artifact, "': ", status.message()));
}

using Json = nlohmann::ordered_json;

std::string Text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

// Returns name suffixes of tensors that the artifact may hold in addition to the model's
// parameters.
absl::StatusOr<std::vector<std::string>> IgnoredIn(const OpRegistry& registry, FileSystem& files,
                                                   const std::string& folder) {
  if (files.Open(JoinPath(folder, kGraphFile)).ok()) return std::vector<std::string>();
  absl::StatusOr<std::string> config = ReadModelConfig(files, folder);
  if (!config.ok()) return config.status();
  absl::StatusOr<LanguageModel> model = ReadModel(*config);
  if (!model.ok()) return model.status();
  absl::StatusOr<TrainingModel> training = BuildTraining(registry, *model, 1);
  if (!training.ok()) return training.status();
  return std::move(training->ignored);
}

// Finds a tensor by its name or without the model's prefix ("transformer."), which checkpoints of
// bare models lack. Returns end() if there is none.
auto Find(const WeightFiles& weights, const std::string& name) {
  const auto found = weights.tensors().find(name);
  return found != weights.tensors().end() ? found
                                          : weights.tensors().find(name.substr(name.find('.') + 1));
}

}  // namespace

// Newer config.json files call the field "dtype" instead of "torch_dtype".
std::string ConfigAfterTraining(const std::string& config) {
  Json json = Json::parse(config, nullptr, false);
  if (json.contains("dtype")) json["dtype"] = "float32";
  if (json.contains("torch_dtype") || !json.contains("dtype")) json["torch_dtype"] = "float32";
  return Text(json);
}

std::string ConfigFromScratch(const std::string& config, const std::string& tokenizer) {
  Json json = Json::parse(ConfigAfterTraining(config), nullptr, false);
  if (tokenizer.empty()) {
    json.erase("tokenizer");
  } else {
    json["tokenizer"] = tokenizer;
  }
  return Text(json);
}

absl::StatusOr<std::optional<Graph>> InitGraphOfArtifact(const OpRegistry& registry,
                                                         const ArtifactStore& artifacts,
                                                         const std::string& artifact) {
  absl::StatusOr<std::string> folder = artifacts.Folder(artifact);
  if (!folder.ok()) return In(artifact, folder.status());
  absl::StatusOr<std::string> bytes =
      ReadWholeFile(*NewPosixFileSystem(), JoinPath(*folder, kGraphFile), kMaxGraphBytes);
  if (absl::IsNotFound(bytes.status())) return std::optional<Graph>();
  if (!bytes.ok()) return In(artifact, bytes.status());
  v1::Graph message;
  if (!message.ParseFromString(*bytes)) {
    return In(artifact, absl::DataLossError(absl::StrCat(kGraphFile, " holds no graph")));
  }
  absl::StatusOr<Graph> graph = FromProto(registry, message);
  if (!graph.ok()) return In(artifact, graph.status());
  return std::optional<Graph>(*std::move(graph));
}

absl::StatusOr<Graph> LanguageModelGraph(const OpRegistry& registry, const std::string& config,
                                         int64_t sequence_length) {
  absl::StatusOr<LanguageModel> model = ReadModel(config);
  if (!model.ok()) return model.status();
  if (sequence_length < 1 || sequence_length > kMaxSequence) {
    return absl::InvalidArgumentError(
        absl::StrCat("examples have ", sequence_length, " tokens, expected 1 to ", kMaxSequence));
  }
  absl::StatusOr<TrainingModel> training = BuildTraining(registry, *model, sequence_length);
  if (!training.ok()) return training.status();
  return std::move(training->graph);
}

absl::StatusOr<Graph> InitGraph(const OpRegistry& registry, const ArtifactStore& artifacts,
                                const std::string& artifact, int64_t sequence_length) {
  absl::StatusOr<std::string> folder = artifacts.Folder(artifact);
  if (!folder.ok()) return In(artifact, folder.status());
  absl::StatusOr<std::string> config = ReadModelConfig(*NewPosixFileSystem(), *folder);
  if (!config.ok()) return In(artifact, config.status());
  absl::StatusOr<Graph> graph = LanguageModelGraph(registry, *config, sequence_length);
  if (!graph.ok()) return In(artifact, graph.status());
  graph->metadata["config"] = ConfigAfterTraining(*config);
  return graph;
}

absl::StatusOr<ArtifactFolder> InitFolder(const OpRegistry& registry,
                                          const ArtifactStore& artifacts,
                                          const std::string& artifact, const Graph& graph) {
  absl::StatusOr<ArtifactFolder> folder = artifacts.Pin(artifact);
  if (!folder.ok()) return In(artifact, folder.status());
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  absl::StatusOr<std::unique_ptr<WeightFiles>> weights = OpenWeights(*files, folder->path());
  if (!weights.ok()) return In(artifact, weights.status());
  absl::StatusOr<std::vector<std::string>> ignored = IgnoredIn(registry, *files, folder->path());
  if (!ignored.ok()) return In(artifact, ignored.status());
  std::set<std::string> known;
  for (const Value& value : graph.values()) {
    if (value.kind != ValueKind::kParameter) continue;
    const auto found = Find(**weights, value.name);
    if (found == (*weights)->tensors().end()) {
      return In(artifact, absl::InvalidArgumentError(absl::StrCat(
                              "it has no tensor '", value.name,
                              "', which the model to be trained has, ", ToString(value.type))));
    }
    known.insert(found->first);
    if (found->second.dims != value.type.dims) {
      return In(artifact, absl::InvalidArgumentError(absl::StrCat(
                              "tensor '", value.name, "' has shape ", ToString(found->second.dims),
                              ", the model to be trained has ", ToString(value.type.dims))));
    }
    if (!found->second.readable || !IsFloat(value.type.dtype)) {
      return In(artifact, absl::InvalidArgumentError(
                              absl::StrCat("tensor '", value.name, "' is ", found->second.dtype,
                                           ", the model to be trained has ", ToString(value.type),
                                           "; accepted: floating-point numbers for both")));
    }
  }
  for (const auto& [name, tensor] : (*weights)->tensors()) {
    const bool is_ignored =
        std::any_of(ignored->begin(), ignored->end(),
                    [&name = name](const std::string& end) { return absl::EndsWith(name, end); });
    if (known.count(name) > 0 || is_ignored) continue;
    return In(artifact, absl::InvalidArgumentError(
                            absl::StrCat("it has a tensor '", name, "', ", ToString(tensor.dims),
                                         ", which the model to be trained has not")));
  }
  return folder;
}

}  // namespace espalier
