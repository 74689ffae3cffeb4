// Uploads and downloads with a progress line.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"

namespace espalier {

// Returns a TransferProgress that draws on the context's output, or nowhere with --json. `context`
// must outlive it.
TransferProgress ShowTransfer(Context& context, const std::string& what);

// Uploads files, unless an artifact has them already, and returns the artifact's name. The first
// file gives it its name. A missing file is a usage error.
using Uploader =
    std::function<absl::StatusOr<std::string>(const std::vector<LocalFile>&, v1::Artifact::Kind)>;

// Client::EnsureUploaded with progress and one line about the outcome. Both arguments must outlive
// the result.
Uploader UploadOnce(Context& context, Client* client);
// The file at `path`, for an Uploader.
std::vector<LocalFile> SingleLocalFile(const std::string& path);

// Returns a single file, or all files of a folder under their relative names, sorted. Usage errors
// name the path.
absl::StatusOr<std::vector<LocalFile>> FilesOf(const std::string& path);

// Whether a model named on the command line may be a local folder or file: it is written as a path
// ("/m", "./m", "../m"), ends in .gguf or .onnx, or has a slash and exists. Other names, also with
// slashes, are those of artifacts.
bool IsLocalModel(const std::string& name_or_path);

// Artifacts that a command has uploaded, with the files or folders that they are copies of.
using UploadedModels = std::map<std::string, std::string>;

// Returns the artifact that `name_or_path` names. A local model that is no artifact's name is
// uploaded and added to *uploaded, unless an artifact with this content exists; *stem becomes its
// name without a folder.
absl::StatusOr<std::string> ModelArtifact(Context& context, Client* client,
                                          const std::string& name_or_path, std::string* stem,
                                          UploadedModels* uploaded);

// Deletes them again if `failure` says that the coordinator has refused to serve them: they may be
// served if it does not. Tells what stays and why.
void DeleteRefused(Context& context, Client* client, const UploadedModels& uploaded,
                   const absl::Status& failure);

// Uploads that nothing else may use (metadata "temporary") and that the destructor deletes, telling
// what stays and why.
class TemporaryUploads {
 public:
  // All arguments must outlive this object. `canceller` ends uploads.
  TemporaryUploads(Context* context, Client* client, Canceller* canceller)
      : context_(*context), client_(*client), canceller_(canceller) {}
  ~TemporaryUploads();

  // Returns an artifact with these files: one that lasts, if there is one, which is then not
  // deleted. The first file gives it its name. A missing file is a usage error.
  absl::StatusOr<std::string> Upload(const std::vector<LocalFile>& files, v1::Artifact::Kind kind);
  // Returns the name of a model named on the command line: of an artifact, or a local model
  // (IsLocalModel).
  absl::StatusOr<std::string> Model(const std::string& name_or_path);

 private:
  Context& context_;
  Client& client_;
  Canceller* const canceller_;
  std::map<std::string, std::string> uploaded_;  // first file -> artifact
};

}  // namespace espalier
