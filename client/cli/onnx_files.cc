#include "client/cli/onnx_files.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/cli/transfer.h"
#include "client/terminal/text.h"
#include "ops/onnx/external_files.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

// The only ONNX file in the folder.
absl::StatusOr<std::string> FileIn(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".onnx") found.push_back(it->path().string());
  }
  if (error) {
    return UsageError(absl::StrCat("cannot read ", Printable(folder), ": ", error.message()));
  }
  std::sort(found.begin(), found.end());
  if (found.size() == 1) return found[0];
  return UsageError(absl::StrCat(
      "the folder ", Printable(folder), " holds ", found.size(), " files that end in .onnx",
      found.empty() ? "" : absl::StrCat(": ", Printable(absl::StrJoin(found, ", "))),
      "; give one of its files"));
}

bool IsPlainRelative(const fs::path& path) {
  return !path.empty() && path.is_relative() &&
         std::none_of(path.begin(), path.end(), [](const fs::path& part) {
           return part == "." || part == ".." || part.empty();
         });
}

}  // namespace

absl::StatusOr<std::vector<LocalFile>> OnnxFilesOf(const std::string& path) {
  std::string file = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    absl::StatusOr<std::string> found = FileIn(path);
    if (!found.ok()) return found.status();
    file = *std::move(found);
  }
  absl::StatusOr<std::string> bytes = ReadNonemptyFile(file);
  if (!bytes.ok()) return bytes.status();
  const absl::StatusOr<std::set<std::string>> locations = ExternalFilesOf(*bytes);
  if (!locations.ok()) {
    return UsageError(absl::StrCat(Printable(file), ": ", locations.status().message()));
  }
  const fs::path folder = fs::path(file).parent_path();
  std::vector<LocalFile> files = {{fs::path(file).filename().string(), file}};
  for (const std::string& location : *locations) {
    const std::string says =
        absl::StrCat(Printable(file), " keeps weights in the file \"", Printable(location), "\"");
    if (!IsPlainRelative(location)) {
      return UsageError(absl::StrCat(says, ", which is no path beneath its folder"));
    }
    const std::string beside = (folder / location).string();
    if (!fs::is_regular_file(beside, error)) {
      return UsageError(absl::StrCat(says, ", and there is no ", Printable(beside)));
    }
    files.push_back({location, beside});
  }
  return files;
}

bool IsOnnxModel(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return absl::EndsWith(path, ".onnx");
  bool found = false;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename() == "config.json" || it->path().extension() == ".gguf") return false;
    found = found || it->path().extension() == ".onnx";
  }
  return found;
}

absl::StatusOr<std::string> OnnxArtifact(const Uploader& upload, const std::string& given) {
  absl::string_view name = given;
  if (absl::ConsumePrefix(&name, "artifact:")) return std::string(name);
  absl::StatusOr<std::vector<LocalFile>> files = OnnxFilesOf(given);
  if (!files.ok()) return files.status();
  return upload(*files, v1::Artifact::ONNX);
}

}  // namespace espalier
