// Uploads and downloads with a progress line.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"

namespace espalier {

// A TransferProgress that draws on the context's output, or nowhere with --json. `context` must
// outlive it.
TransferProgress ShowTransfer(Context& context, const std::string& what);

// Client::EnsureUploaded with progress and one line that says what happened.
absl::StatusOr<std::string> UploadOnce(Context& context, Client* client, const std::string& path,
                                       v1::Artifact::Kind kind);

// A file alone, or all files of a folder under their names in it, sorted. Usage errors name the
// path.
absl::StatusOr<std::vector<LocalFile>> FilesOf(const std::string& path);

// Models that a command names: artifacts, or folders and GGUF files on this machine (whatever has a
// '/' in it or ends in .gguf), which are artifacts until this object goes.
class TemporaryUploads {
 public:
  // All must outlive this object. `canceller` ends uploads.
  TemporaryUploads(Context* context, Client* client, Canceller* canceller)
      : context_(*context), client_(*client), canceller_(canceller) {}
  ~TemporaryUploads();

  // The artifact's name.
  absl::StatusOr<std::string> Artifact(const std::string& name_or_path);

 private:
  Context& context_;
  Client& client_;
  Canceller* const canceller_;
  std::map<std::string, std::string> uploaded_;  // by path
};

}  // namespace espalier
