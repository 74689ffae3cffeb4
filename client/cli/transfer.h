// Uploads and downloads with a progress line.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"

namespace espalier {

// Returns a TransferProgress that draws on the context's output, or nowhere with --json. `context`
// must outlive it.
TransferProgress ShowTransfer(Context& context, const std::string& what);

// Client::EnsureUploaded with progress and one line about the outcome. The first file gives the
// artifact its name.
absl::StatusOr<std::string> UploadOnce(Context& context, Client* client,
                                       const std::vector<LocalFile>& files,
                                       v1::Artifact::Kind kind);
// For one file.
absl::StatusOr<std::string> UploadOnce(Context& context, Client* client, const std::string& path,
                                       v1::Artifact::Kind kind);

// Returns a single file, or all files of a folder under their relative names, sorted. Usage errors
// name the path.
absl::StatusOr<std::vector<LocalFile>> FilesOf(const std::string& path);

// Whether a model named on the command line may be a local folder or GGUF file: it is written as a
// path ("/m", "./m", "../m"), ends in .gguf, or has a slash and exists. Other names, also with
// slashes, are those of artifacts.
bool IsLocalModel(const std::string& name_or_path);

// Returns the artifact that `name_or_path` names. A local model that is no artifact's name is
// uploaded, unless an artifact with this content exists; then *stem becomes its name without a
// folder.
absl::StatusOr<std::string> ModelArtifact(Context& context, Client* client,
                                          const std::string& name_or_path, std::string* stem);

// Resolves models named on the command line: artifacts, or local models (IsLocalModel), which are
// uploaded as artifacts and deleted again by the destructor.
class TemporaryUploads {
 public:
  // All arguments must outlive this object. `canceller` ends uploads.
  TemporaryUploads(Context* context, Client* client, Canceller* canceller)
      : context_(*context), client_(*client), canceller_(canceller) {}
  ~TemporaryUploads();

  // Returns the artifact's name.
  absl::StatusOr<std::string> Artifact(const std::string& name_or_path);

 private:
  Context& context_;
  Client& client_;
  Canceller* const canceller_;
  std::map<std::string, std::string> uploaded_;  // path -> artifact
};

}  // namespace espalier
