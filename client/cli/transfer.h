// Uploads and downloads with a progress line.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/command.h"

namespace espalier {

// A TransferProgress that draws on the context's output, or nowhere with --json. `context` must
// outlive it.
TransferProgress ShowTransfer(Context& context, const std::string& what);

// Client::EnsureUploaded with progress and one line that says what happened.
absl::StatusOr<std::string> UploadOnce(Context& context, Client* client, const std::string& path,
                                       proto::Artifact::Kind kind);

}  // namespace espalier
