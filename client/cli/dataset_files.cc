#include "client/cli/dataset_files.h"

#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/training_flags.h"

namespace espalier {

absl::Status FillDataset(const ParsedFlags& flags, const char* flag, const Uploader& upload,
                         v1::Dataset* dataset) {
  const std::string given = flags.Text(flag);
  if (given.empty()) {
    return UsageError(absl::StrCat("which dataset? Give --", flag, "=FILE (text, npz or npy)"));
  }
  auto format = DatasetFormat(flags, given);
  if (!format.ok()) return format.status();
  dataset->set_format(*format);
  if (absl::StartsWith(given, "artifact:") || absl::StartsWith(given, "s3://")) {
    dataset->set_uri(given);
    return absl::OkStatus();
  }
  if (flags.Has("no-upload")) {
    if (!absl::StartsWith(given, "/"))
      return UsageError(absl::StrCat("--no-upload needs an absolute path in --", flag));
    dataset->set_uri(given);
    return absl::OkStatus();
  }
  auto name = upload(SingleLocalFile(given), v1::Artifact::DATASET);
  if (!name.ok()) {
    std::error_code error;
    if (std::filesystem::exists(given, error)) return name.status();
    return UsageError(absl::StrCat(name.status().message(),
                                   "; a dataset that is uploaded is named --", flag,
                                   "=artifact:NAME"));
  }
  dataset->set_uri("artifact:" + *name);
  return absl::OkStatus();
}

}  // namespace espalier
