// Lists, syncs, sums and removes the files of an artifact's folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"

namespace espalier {

// Errors are ignored: a removal never fails a call that was acknowledged. Leftovers are removed at
// the next start.
void RemoveTree(const std::string& path);
// Returns the sorted names of all files under `root`, relative to it.
absl::StatusOr<std::vector<std::string>> FilesBeneath(const std::string& root);
// Syncs `root` and every folder under it.
absl::Status SyncFolders(FileSystem& files, const std::string& root);

// Returns the hash of a single file, or of a folder's sorted "name sha256" lines.
std::string SumOf(const std::map<std::string, std::string>& sums);
// Returns the hash of a file and sets *bytes to its size.
absl::StatusOr<std::string> SumOfFile(FileSystem& files, const std::string& path, int64_t* bytes);

}  // namespace espalier
