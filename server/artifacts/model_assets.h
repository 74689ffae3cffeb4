// What an artifact of a model holds besides its weights.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "espalier/v1/models.pb.h"
#include "base/file_system.h"

namespace espalier {

// What boost-tuning found out about a model, beside its weights: it is true of those alone.
inline constexpr char kDistillationReport[] = "boost_tuning.json";

absl::Status CopyFile(FileSystem& files, const std::string& from, const std::string& to);

// Tokenizer, templates, licence and what else the model of that artifact, in folder `from`, has for
// one that is made of it: all but weights, graphs, config.json and reports. Of a GGUF without a
// tokenizer.json, that and tokenizer_config.json are made of its metadata; one that cannot be read
// there is left out, with a warning. Folder `to` is there.
absl::Status CopyModelAssets(FileSystem& files, const v1::Artifact& artifact,
                               const std::string& from, const std::string& to);

}  // namespace espalier
