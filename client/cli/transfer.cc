#include "client/cli/transfer.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/onnx_files.h"
#include "client/terminal/progress.h"
#include "client/terminal/text.h"

namespace espalier {

TransferProgress ShowTransfer(Context& context, const std::string& what) {
  if (context.json() || !context.terminal().is_tty) return nullptr;
  auto printer = std::make_shared<ProgressPrinter>(context.env().out, context.terminal(),
                                                   context.env().seconds);
  const double start = context.env().seconds();
  return [printer, what, start, seconds = context.env().seconds](int64_t done, int64_t total) {
    Progress p;
    p.unit = what;
    p.done = static_cast<double>(done >> 20);
    p.total = static_cast<double>(std::max<int64_t>(total >> 20, 1));
    p.detail = "MiB";
    const double passed = seconds() - start;
    if (passed > 0.5) {
      p.rate = static_cast<double>(done) / passed;
      p.rate_unit = "B/s";
    }
    printer->Update(p);
    if (done >= total) printer->Finish();
  };
}

namespace {

// A missing local file is a usage error.
absl::Status OfUpload(const absl::Status& status) {
  return status.code() == absl::StatusCode::kNotFound &&
                 !absl::StrContains(status.message(), "rtifact")
             ? UsageError(std::string(status.message()))
             : status;
}

void ShowUpload(Context& context, const std::string& path, bool uploaded,
                const std::string& artifact) {
  if (context.json()) return;
  context.out() << Printable(path) << (uploaded ? " uploaded as " : " is there already: ")
                << Printable(artifact) << std::endl;
}

// Tells if it stays, and why.
void DeleteCopy(Context& context, Client* client, const std::string& path,
                const std::string& artifact) {
  const absl::Status status = client->DeleteArtifact(artifact);
  if (status.ok() || absl::IsNotFound(status)) return;
  *context.env().err << "espalier: the copy of " << Printable(path) << " stays as artifact "
                     << artifact << ": " << Printable(std::string(status.message())) << std::endl;
}

}  // namespace

Uploader UploadOnce(Context& context, Client* client) {
  return [&context, client](const std::vector<LocalFile>& files,
                            v1::Artifact::Kind kind) -> absl::StatusOr<std::string> {
    bool uploaded = false;
    auto name = client->EnsureUploaded(files, kind, ShowTransfer(context, "upload"), &uploaded);
    if (!name.ok()) return OfUpload(name.status());
    ShowUpload(context, files[0].path, uploaded, *name);
    return name;
  };
}

std::vector<LocalFile> SingleLocalFile(const std::string& path) {
  return {{std::filesystem::path(path).filename().string(), path}};
}

absl::StatusOr<std::vector<LocalFile>> FilesOf(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    return std::vector<LocalFile>{{fs::path(path).filename().string(), path}};
  }
  if (!fs::is_directory(path, error)) {
    return UsageError(absl::StrCat("cannot read ", Printable(path)));
  }
  std::vector<LocalFile> files;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    if (!it->is_regular_file(error)) continue;
    // The link's name: Hugging Face's cache has links to files of other names.
    files.push_back({it->path().lexically_relative(path).generic_string(), it->path().string()});
  }
  if (error) {
    return UsageError(absl::StrCat("cannot read ", Printable(path), ": ", error.message()));
  }
  if (files.empty()) return UsageError(absl::StrCat(Printable(path), " holds no files"));
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return files;
}

bool IsLocalModel(const std::string& name_or_path) {
  std::error_code error;
  const bool path = absl::StartsWith(name_or_path, "/") || name_or_path == "." ||
                    name_or_path == ".." || absl::StartsWith(name_or_path, "./") ||
                    absl::StartsWith(name_or_path, "../");
  return path || absl::EndsWith(name_or_path, ".gguf") || absl::EndsWith(name_or_path, ".onnx") ||
         (absl::StrContains(name_or_path, "/") && std::filesystem::exists(name_or_path, error));
}

absl::StatusOr<std::string> ModelArtifact(Context& context, Client* client,
                                          const std::string& name_or_path, std::string* stem,
                                          UploadedModels* uploaded) {
  if (!IsLocalModel(name_or_path)) return name_or_path;
  // No artifact's name begins with a dot or a slash.
  if (name_or_path[0] != '.' && name_or_path[0] != '/') {
    auto artifacts = client->ListArtifacts();
    if (!artifacts.ok()) return artifacts.status();
    for (const v1::Artifact& artifact : *artifacts) {
      if (artifact.name() == name_or_path) return name_or_path;
    }
  }
  const bool onnx = IsOnnxModel(name_or_path);
  auto files = onnx ? OnnxFilesOf(name_or_path) : FilesOf(name_or_path);
  if (!files.ok()) return files.status();
  std::error_code error;
  if (!onnx && !std::filesystem::is_directory(name_or_path, error) &&
      !absl::EndsWith(name_or_path, ".gguf")) {
    return UsageError(absl::StrCat(Printable(name_or_path),
                                   " is no model; accepted: a folder as Hugging Face has them, a "
                                   ".gguf or .onnx file, or the name of an artifact"));
  }
  *stem = ArtifactStem(name_or_path);
  bool sent = false;
  auto name = client->EnsureUploaded(*files, *stem, onnx ? v1::Artifact::ONNX : v1::Artifact::MODEL,
                                     ShowTransfer(context, "upload"), &sent);
  if (!name.ok()) return name.status();
  ShowUpload(context, name_or_path, sent, *name);
  if (sent) (*uploaded)[*name] = name_or_path;
  return name;
}

void DeleteRefused(Context& context, Client* client, const UploadedModels& uploaded,
                   const absl::Status& failure) {
  switch (failure.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnknown:
      return;
    default:
      break;
  }
  for (const auto& [name, path] : uploaded) DeleteCopy(context, client, path, name);
}

TemporaryUploads::~TemporaryUploads() {
  for (const auto& [path, name] : uploaded_) DeleteCopy(context_, &client_, path, name);
}

absl::StatusOr<std::string> TemporaryUploads::Upload(const std::vector<LocalFile>& files,
                                                     v1::Artifact::Kind kind) {
  const std::string& path = files[0].path;
  const auto known = uploaded_.find(path);
  if (known != uploaded_.end()) return known->second;
  const absl::StatusOr<std::string> lasting = client_.FindUploaded(files, kind);
  if (!lasting.ok()) return OfUpload(lasting.status());
  if (!lasting->empty()) {
    ShowUpload(context_, path, /*uploaded=*/false, *lasting);
    return lasting;
  }
  v1::UploadHeader header;
  header.set_name(
      absl::StrCat("borrowed-", ArtifactStem(path), "-", NewIdempotencyKey().substr(0, 16)));
  header.set_kind(kind);
  (*header.mutable_metadata())["temporary"] = "true";
  auto artifact = client_.Upload(header, files, ShowTransfer(context_, "upload"), canceller_);
  // A cancelled upload may have completed on the coordinator.
  if (artifact.ok() || absl::IsCancelled(artifact.status())) uploaded_[path] = header.name();
  if (!artifact.ok()) return OfUpload(artifact.status());
  return artifact->name();
}

absl::StatusOr<std::string> TemporaryUploads::Model(const std::string& name_or_path) {
  if (!IsLocalModel(name_or_path)) return name_or_path;
  auto files = FilesOf(name_or_path);
  if (!files.ok()) return files.status();
  return Upload(*files, v1::Artifact::MODEL);
}

}  // namespace espalier
