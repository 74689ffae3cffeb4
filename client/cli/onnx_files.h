// ONNX models on the command line: a file, with its weights inside or beside it, a folder, or an
// artifact.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/cli/transfer.h"

namespace espalier {

// Returns the files of the model at `path`, an ONNX file or a folder that holds one: first the ONNX
// file, then those that hold its external data, under their names relative to it. Usage errors name
// what is missing.
absl::StatusOr<std::vector<LocalFile>> OnnxFilesOf(const std::string& path);

// Whether a path named on the command line is that of an ONNX model: a file that ends in .onnx, or
// a folder that holds such files and no model of another kind.
bool IsOnnxModel(const std::string& path);

// Returns the artifact's name: NAME for "artifact:NAME", otherwise that of an upload.
absl::StatusOr<std::string> OnnxArtifact(const Uploader& upload, const std::string& given);

}  // namespace espalier
