#include "server/artifacts/model_assets.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "models/tokenizer_file_names.h"
#include "models/weights/flexflow_weights.h"
#include "models/weights/weight_files.h"

namespace espalier {
namespace {

constexpr int64_t kCopyChunk = 1 << 20;

bool IsWeights(const std::string& file) {
  return absl::EndsWith(file, ".safetensors") || absl::EndsWith(file, ".safetensors.index.json") ||
         absl::EndsWith(file, ".gguf") || absl::EndsWith(file, ".bin") ||
         absl::EndsWith(file, ".onnx") || IsFlexFlowWeight(file);
}

// Writes the tokenizer and chat template of a GGUF, which lie in its weight file. Its end-of-turn
// tokens are part of the configuration (ReadModelConfig).
absl::Status WriteTokenizer(FileSystem& files, const v1::Artifact& artifact,
                            const std::string& from, const std::string& to) {
  const auto has = [&](const char* name) {
    return std::find(artifact.files().begin(), artifact.files().end(), name) !=
           artifact.files().end();
  };
  if (has("tokenizer.json")) return absl::OkStatus();
  const absl::StatusOr<TokenizerTexts> texts = ReadModelTokenizer(files, from);
  if (absl::IsUnimplemented(texts.status()) || absl::IsInvalidArgument(texts.status())) {
    // Only a warning: the derived weights took long to make, and the source model is not served
    // without a tokenizer.json either.
    spdlog::warn("artifact {}: what is made of it has no tokenizer: {}", artifact.name(),
                 std::string(texts.status().message()));
    return absl::OkStatus();
  }
  if (!texts.ok()) return texts.status();
  if (texts->tokenizer.empty()) return absl::OkStatus();
  absl::Status status =
      WriteFileAtomically(files, JoinPath(to, "tokenizer.json"), texts->tokenizer);
  if (status.ok() && !has("tokenizer_config.json")) {
    status = WriteFileAtomically(files, JoinPath(to, "tokenizer_config.json"), texts->config);
  }
  return status;
}

}  // namespace

absl::Status CopyFile(FileSystem& files, const std::string& from, const std::string& to) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> in = files.Open(from);
  if (!in.ok()) return in.status();
  absl::StatusOr<std::unique_ptr<WritableFile>> out = files.Create(to);
  if (!out.ok()) return out.status();
  std::string chunk;
  for (int64_t at = 0; at < (*in)->size();) {
    chunk.resize(static_cast<size_t>(std::min(kCopyChunk, (*in)->size() - at)));
    const int64_t bytes = static_cast<int64_t>(chunk.size());
    absl::Status status = (*in)->Read(at, bytes, chunk.data());
    if (status.ok()) status = (*out)->Append(chunk.data(), bytes);
    if (!status.ok()) return status;
    at += bytes;
  }
  absl::Status status = (*out)->Sync();
  return status.ok() ? (*out)->Close() : status;
}

absl::Status CopyModelAssets(FileSystem& files, const v1::Artifact& artifact,
                             const std::string& from, const std::string& to, ModelAssets which) {
  for (const std::string& file : artifact.files()) {
    if (file == "config.json" || file == "graph.pb" || file == kDistillationReport ||
        IsWeights(file)) {
      continue;
    }
    if (which != ModelAssets::kAll && IsTokenizerFile(file) != (which == ModelAssets::kTokenizer)) {
      continue;
    }
    const size_t slash = file.rfind('/');
    absl::Status status = slash == std::string::npos
                              ? absl::OkStatus()
                              : files.CreateDirectories(JoinPath(to, file.substr(0, slash)));
    if (status.ok()) status = CopyFile(files, JoinPath(from, file), JoinPath(to, file));
    if (!status.ok()) return status;
  }
  return which == ModelAssets::kOthers ? absl::OkStatus()
                                       : WriteTokenizer(files, artifact, from, to);
}

}  // namespace espalier
