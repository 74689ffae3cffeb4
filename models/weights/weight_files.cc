#include "models/weights/weight_files.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/weights/flexflow_weights.h"
#include "models/weights/gguf_model.h"
#include "models/weights/gguf_splits.h"
#include "models/weights/gguf_tokenizer.h"
#include "models/weights/safetensors_weights.h"

namespace espalier {
namespace {

// Returns the only *.gguf among the names, or the first split; empty if there is none. Ignores
// mmproj*.gguf: vision encoders, which text does not need.
absl::StatusOr<std::string> FindGguf(const std::string& folder,
                                     const std::vector<std::string>& names) {
  std::string found;
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, ".gguf") || absl::StartsWith(name, "mmproj")) continue;
    const GgufSplitName part = ParseGgufSplitName(name);
    const std::string first = part.count > 1 ? GgufSplitPath(part, 0) : name;
    if (!found.empty() && found != first) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", folder, "' has both '", found, "' and '", name,
                       "'; accepted: one GGUF file, or the files that one model is cut into"));
    }
    found = first;
    if (std::find(names.begin(), names.end(), first) != names.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat("'", folder, "' has '", name, "' without '",
                                                   first, "'; accepted: all ", part.count,
                                                   " files"));
  }
  return found;
}

}  // namespace

absl::Status WeightFiles::ReadBytes(const std::string& tensor, int64_t, int64_t, void*) const {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", tensor, "' lies in a file that holds no packed matrices"));
}

absl::Status WeightFiles::ReadQ8Blocks(const std::string& tensor, int64_t, int64_t,
                                       uint8_t*) const {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", tensor, "' is not made of Q8_0 blocks along its rows"));
}

absl::StatusOr<std::unique_ptr<WeightFiles>> OpenWeights(FileSystem& files,
                                                         const std::string& folder,
                                                         const TensorShapes& expected) {
  absl::StatusOr<std::vector<std::string>> names = files.List(folder);
  if (!names.ok()) return names.status();
  absl::StatusOr<std::unique_ptr<WeightFiles>> weights = OpenSafetensors(files, folder, *names);
  if (!weights.ok() || *weights != nullptr) return weights;
  absl::StatusOr<std::string> gguf = FindGguf(folder, *names);
  if (!gguf.ok()) return gguf.status();
  if (!gguf->empty()) return OpenGgufModel(files, JoinPath(folder, *gguf));
  if (IsFlexFlowFolder(*names)) return OpenFlexFlow(files, folder, *names, expected);
  return absl::NotFoundError(absl::StrCat(
      "'", folder,
      "' has neither model.safetensors nor model.safetensors.index.json nor a *.gguf"));
}

absl::StatusOr<std::unique_ptr<WeightFiles>> OpenAdapterWeights(FileSystem& files,
                                                                const std::string& folder) {
  absl::StatusOr<std::vector<std::string>> names = files.List(folder);
  if (!names.ok()) return names.status();
  absl::StatusOr<std::unique_ptr<WeightFiles>> weights =
      OpenSafetensors(files, folder, *names, "adapter_model");
  if (!weights.ok() || *weights != nullptr) return weights;
  return absl::NotFoundError(absl::StrCat(
      "'", folder, "' has no adapter_model.safetensors (a pickled adapter_model.bin is not read)"));
}

absl::StatusOr<std::string> ReadModelConfig(FileSystem& files, const std::string& folder) {
  absl::StatusOr<std::vector<std::string>> names = files.List(folder);
  if (!names.ok()) return names.status();
  if (std::find(names->begin(), names->end(), "config.json") != names->end()) {
    return ReadWholeFile(files, JoinPath(folder, "config.json"), 1 << 20);
  }
  absl::StatusOr<std::string> gguf = FindGguf(folder, *names);
  if (!gguf.ok()) return gguf.status();
  if (!gguf->empty()) return GgufConfig(files, JoinPath(folder, *gguf));
  return absl::InvalidArgumentError("has no config.json, and no *.gguf that could stand for it");
}

absl::StatusOr<TokenizerTexts> ReadModelTokenizer(FileSystem& files, const std::string& folder) {
  absl::StatusOr<std::vector<std::string>> names = files.List(folder);
  if (!names.ok()) return names.status();
  absl::StatusOr<std::string> gguf = FindGguf(folder, *names);
  if (!gguf.ok()) return gguf.status();
  if (gguf->empty()) return TokenizerTexts();
  return GgufTokenizer(files, JoinPath(folder, *gguf));
}

}  // namespace espalier
