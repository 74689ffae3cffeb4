// Checks the names of artifacts and of their files.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace espalier {

// Accepts [A-Za-z0-9._-]+ of at most 128 characters that does not start with a dot.
absl::Status CheckArtifactName(const std::string& name);
// What a caller calls an artifact by: "name", which is its newest version, or "name@2".
struct ArtifactReference {
  std::string name;
  int64_t version = 0;  // from 1; 0: the newest
};
// Returns InvalidArgument unless the name is one that CheckArtifactName accepts and the version a
// plain number from 1.
absl::StatusOr<ArtifactReference> ParseArtifactReference(const std::string& reference);
// Accepts relative paths of at most 255 characters without "..", ".", empty components, backslashes
// and control characters.
absl::Status CheckArtifactFile(const std::string& name);

}  // namespace espalier
