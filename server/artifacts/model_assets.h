// The files of a model artifact other than its weights.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/file_system.h"
#include "espalier/v1/models.pb.h"

namespace espalier {

// The report of boost-tuning. Not copied: it holds for these weights only.
inline constexpr char kDistillationReport[] = "boost_tuning.json";

absl::Status CopyFile(FileSystem& files, const std::string& from, const std::string& to);

enum class ModelAssets {
  kAll,        // tokenizer, license and so on
  kTokenizer,  // IsTokenizerFile
  kOthers,     // all but the tokenizer
};

// Copies a model's assets from `from` to the existing folder `to`, for an artifact derived from
// `artifact`: of all files except weights, graphs, config.json and reports those that are asked
// for. With the tokenizer of a GGUF without a tokenizer.json, writes that and tokenizer_config.json
// from its metadata; a tokenizer that cannot be converted is left out with a warning.
absl::Status CopyModelAssets(FileSystem& files, const v1::Artifact& artifact,
                             const std::string& from, const std::string& to,
                             ModelAssets which = ModelAssets::kAll);

}  // namespace espalier
