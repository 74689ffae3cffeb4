// Checks the names of artifacts and of their files.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace espalier {

// Accepts one or more parts [A-Za-z0-9._-]+ with slashes between, as in "org/model", of at most 128
// characters in all; none starts with a dot.
absl::Status CheckArtifactName(const std::string& name);
// Also refuses names that the coordinator gives to what jobs and boost-tunings make ("job-7",
// "boost-2.round-1"): for artifacts that clients name.
absl::Status CheckClientArtifactName(const std::string& name);
// What a caller calls an artifact by: "name", which is its newest version, or "name@2".
struct ArtifactReference {
  std::string name;
  int64_t version = 0;  // from 1; 0: the newest
};
// Returns InvalidArgument unless the name is one that CheckArtifactName accepts and the version a
// plain number from 1.
absl::StatusOr<ArtifactReference> ParseArtifactReference(const std::string& reference);
// Returns what stands for the artifact's name, which passed CheckArtifactName, in a name of a file.
std::string FolderNameOf(const std::string& artifact);
// Accepts relative paths of at most 255 characters without "..", ".", empty components, backslashes
// and control characters.
absl::Status CheckArtifactFile(const std::string& name);

}  // namespace espalier
