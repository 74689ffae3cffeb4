#include "server/artifacts/onnx_file.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {

absl::StatusOr<std::string> OnnxFileAmong(const std::vector<std::string>& files) {
  if (files.size() == 1) return files[0];
  std::vector<std::string> models;
  for (const std::string& file : files) {
    if (absl::EndsWith(file, ".onnx")) models.push_back(file);
  }
  if (models.size() == 1) return models[0];
  return absl::InvalidArgumentError(
      absl::StrCat("it has ", models.size(), " files that end in .onnx, expected one"));
}

}  // namespace espalier
