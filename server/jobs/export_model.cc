#include "server/jobs/export_model.h"

#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/model.h"
#include "ops/graph/graph_proto.h"
#include "ops/onnx/export.h"
#include "server/artifacts/model_assets.h"
#include "serving/tokenizer/byte_tokenizer_files.h"
#include "storage/manifest.h"
#include "storage/safetensors.h"

namespace espalier {
namespace {

constexpr char kWeights[] = "model.safetensors";

absl::Status WriteGraph(const ModelExport& what, const std::string& folder) {
  v1::Graph message = ToProto(*what.model);
  for (v1::Value& value : *message.mutable_values()) {
    if (value.kind() != v1::PARAMETER) continue;
    value.clear_data();
    if (value.initializer().kind() == v1::Initializer::STORED) value.clear_initializer();
  }
  return WriteFileAtomically(*what.files, JoinPath(folder, "graph.pb"),
                             message.SerializeAsString());
}

absl::Status WriteOnnx(const ModelExport& what, const std::string& folder, std::string* no_onnx) {
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> weights =
      SafetensorsFile::Open(*what.files, JoinPath(folder, kWeights));
  if (!weights.ok()) return weights.status();
  ExportOptions options;
  options.weight = [&](const Value& parameter) -> absl::StatusOr<OnnxWeight> {
    const auto found = (*weights)->tensors().find(parameter.name);
    if (found == (*weights)->tensors().end() || found->second.type != parameter.type) {
      return absl::InternalError(absl::StrCat("parameter '", parameter.name, "' is not in ",
                                              kWeights, " as ", ToString(parameter.type)));
    }
    return OnnxWeight{"", kWeights, found->second.offset};
  };
  absl::StatusOr<std::string> model = ExportOnnx(*what.registry, *what.model, options);
  if (absl::IsUnimplemented(model.status()) || absl::IsInvalidArgument(model.status())) {
    *no_onnx = std::string(model.status().message());
    return absl::OkStatus();
  }
  if (!model.ok()) return model.status();
  return WriteFileAtomically(*what.files, JoinPath(folder, "model.onnx"), *model);
}

absl::Status CopyAssets(const ModelExport& what, const std::string& folder) {
  const ModelAssets of_init =
      what.tokenizer_artifact.empty() ? ModelAssets::kAll : ModelAssets::kOthers;
  for (const auto& [name, assets] : {std::pair{what.init_artifact, of_init},
                                     {what.tokenizer_artifact, ModelAssets::kTokenizer}}) {
    if (name.empty()) continue;
    const absl::StatusOr<v1::Artifact> artifact = what.artifacts->Find(name);
    if (!artifact.ok()) return artifact.status();
    const absl::StatusOr<ArtifactFolder> from = what.artifacts->Pin(name);
    if (!from.ok()) return from.status();
    const absl::Status copied =
        CopyModelAssets(*what.files, *artifact, from->path(), folder, assets);
    if (!copied.ok()) return copied;
  }
  return absl::OkStatus();
}

// For programs that do not know "tokenizer": "bytes" in config.json.
absl::Status WriteByteTokenizer(const ModelExport& what, const std::string& config,
                                const std::string& folder) {
  const absl::StatusOr<LanguageModel> model = ReadModel(config);
  if (!model.ok() || model->facts.tokenizer != "bytes") return absl::OkStatus();
  absl::Status status =
      WriteFileAtomically(*what.files, JoinPath(folder, "tokenizer.json"), ByteTokenizerJson());
  if (!status.ok()) return status;
  return WriteFileAtomically(*what.files, JoinPath(folder, "tokenizer_config.json"),
                             ByteTokenizerConfigJson());
}

}  // namespace

absl::StatusOr<std::string> ExportModel(const ModelExport& what, std::string* no_onnx) {
  auto family = what.model->metadata.find("family");
  auto config = what.model->metadata.find("config");
  const bool known = family != what.model->metadata.end() && config != what.model->metadata.end();

  absl::StatusOr<std::string> staging = what.artifacts->MakeStagingFolder();
  if (!staging.ok()) return staging.status();
  std::map<std::string, DType> types;
  for (const Value& value : what.model->values()) {
    if (value.kind == ValueKind::kParameter) types[value.name] = value.type.dtype;
  }
  const auto go_on = [&what] {
    return what.stop && what.stop() ? absl::CancelledError("stopped while the model was written")
                                    : absl::OkStatus();
  };
  absl::Status status =
      ExportHuggingFace(*what.checkpoints, what.checkpoint,
                        known ? config->second : "{\n  \"model_type\": \"espalier_graph\"\n}\n",
                        *what.files, *staging, types);
  if (status.ok()) status = go_on();
  if (status.ok() && known) status = CopyAssets(what, *staging);
  if (status.ok() && known) status = WriteByteTokenizer(what, config->second, *staging);
  if (status.ok() && !known) status = WriteGraph(what, *staging);
  if (status.ok() && !known) status = WriteOnnx(what, *staging, no_onnx);
  if (status.ok()) status = go_on();
  if (status.ok()) {
    absl::StatusOr<v1::Artifact> artifact = what.artifacts->RegisterStaged(
        *staging,
        {what.name,
         v1::Artifact::MODEL,
         {{"job", what.job_id}, {"family", known ? family->second : "graph"}},
         what.owner},
        IfExists::kAddVersion,
        /*make_idempotency_record=*/nullptr, go_on);
    if (artifact.ok()) return artifact->name();
    status = artifact.status();
  }
  std::error_code ignored;
  std::filesystem::remove_all(*staging, ignored);
  return status;
}

}  // namespace espalier
