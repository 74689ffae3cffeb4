// Reads the tokenizer files of a model's folder.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "serving/tokenizer/tokenizer_files.h"

namespace espalier {

// Returns the contents, empty where a file is missing. Without a tokenizer.json they are made from
// the metadata of the folder's GGUF, if it has one. Returns ResourceExhausted for a file that is
// too large, and the errors of ReadModelTokenizer.
absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(FileSystem& files, const std::string& folder);

}  // namespace espalier
