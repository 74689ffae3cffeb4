#include "client/cli/tokenizer_files.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/terminal/text.h"
#include "models/tokenizer_file_names.h"

namespace espalier {
namespace {

constexpr char kTokenizerJson[] = "tokenizer.json";

bool Has(const std::vector<LocalFile>& files, const char* name) {
  return std::any_of(files.begin(), files.end(),
                     [name](const LocalFile& file) { return file.name == name; });
}

absl::StatusOr<std::vector<LocalFile>> TokenizerFilesIn(const std::string& folder) {
  const absl::StatusOr<std::vector<LocalFile>> all = FilesOf(folder);
  if (!all.ok()) return all.status();
  std::vector<LocalFile> files, ggufs;
  for (const LocalFile& file : *all) {
    if (IsTokenizerFile(file.name)) files.push_back(file);
    if (absl::EndsWith(file.name, ".gguf") && !absl::StrContains(file.name, "/")) {
      ggufs.push_back(file);
    }
  }
  if (!Has(files, kTokenizerJson)) {
    if (ggufs.empty()) {
      const bool others = Has(files, "tokenizer.model") || Has(files, "spiece.model") ||
                          Has(files, "vocab.json") || Has(files, "vocab.txt");
      return UsageError(absl::StrCat(
          "--tokenizer: the folder ", Printable(folder), " has no tokenizer.json and no GGUF file",
          others ? "; transformers writes one from its other files: "
                   "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
                 : ""));
    }
    files.insert(files.end(), ggufs.begin(), ggufs.end());
  }
  // The first file gives the artifact its name.
  std::stable_partition(files.begin(), files.end(), [](const LocalFile& file) {
    return file.name == kTokenizerJson || absl::EndsWith(file.name, ".gguf");
  });
  return files;
}

absl::StatusOr<std::vector<LocalFile>> TokenizerFilesOf(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return TokenizerFilesIn(path);
  if (absl::EndsWith(path, ".gguf")) return SingleLocalFile(path);
  if (absl::EndsWith(path, ".json")) return std::vector<LocalFile>{{kTokenizerJson, path}};
  return UsageError(absl::StrCat("--tokenizer is ", Printable(path),
                                 "; accepted: a folder that holds a tokenizer.json, such a file, a "
                                 ".gguf file, or the name of an artifact"));
}

}  // namespace

absl::StatusOr<std::string> TokenizerArtifact(const Uploader& upload, const std::string& given) {
  absl::string_view name = given;
  if (absl::ConsumePrefix(&name, "artifact:")) return std::string(name);
  if (given.empty()) return UsageError("which tokenizer? Give --tokenizer=FOLDER or ARTIFACT");
  std::error_code error;
  if (std::filesystem::exists(given, error)) {
    const absl::StatusOr<std::vector<LocalFile>> files = TokenizerFilesOf(given);
    if (!files.ok()) return files.status();
    return upload(*files, v1::Artifact::MODEL);
  }
  if (IsLocalModel(given) || absl::EndsWith(given, ".json")) {
    return UsageError(absl::StrCat("--tokenizer: cannot read ", Printable(given)));
  }
  return given;
}

}  // namespace espalier
