// Makes an artifact of one file in the coordinator.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "espalier/v1/models.pb.h"
#include "server/artifacts/artifact_store.h"

namespace espalier {

// Registers an artifact that holds `content` as the file `file`, durably. Errors are those of
// ArtifactStore::Begin and ArtifactUpload.
absl::StatusOr<v1::Artifact> StoreFile(ArtifactStore* artifacts, const NewArtifact& what,
                                       bool replace, const std::string& file,
                                       absl::string_view content);

}  // namespace espalier
