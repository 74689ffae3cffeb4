// Tokenizers on the command line.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/transfer.h"

namespace espalier {

// Returns the artifact that --tokenizer names: NAME for "artifact:NAME" and for a name that is no
// file, otherwise that of an upload: of the tokenizer files of a folder, or of its GGUF file if it
// has no tokenizer.json, or of one tokenizer.json or GGUF file. Usage errors say what is missing.
absl::StatusOr<std::string> TokenizerArtifact(const Uploader& upload, const std::string& given);

}  // namespace espalier
