// A checkpoint is a directory of shard files and a manifest.json, which the coordinator writes
// last, when every rank's shard is durable. A directory without a manifest is not a checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "ops/tensor/dtype.h"

namespace espalier {

constexpr char kManifestFile[] = "manifest.json";

struct ManifestFile {
  std::string name;    // within the directory; no "/"
  std::string sha256;  // lower-case hex
  int64_t bytes = 0;
};

struct Manifest {
  int format_version = 1;
  std::string job_id;
  int64_t steps_done = 0;  // the next step to run
  std::string graph_fingerprint;
  std::vector<ManifestFile> files;  // one per rank, by rank
};

// The manifest is durable when this returns.
absl::Status WriteManifest(FileSystem& files, const std::string& directory,
                           const Manifest& manifest);

// Returns NotFound without a manifest; DataLoss naming the field if it is invalid;
// FailedPrecondition if a newer version wrote it.
absl::StatusOr<Manifest> ReadManifest(FileSystem& files, const std::string& directory);

// Returns DataLoss naming the first file that is missing or of another size.
// CheckpointReader::Verify checks contents.
absl::Status CheckShardSizes(FileSystem& files, const std::string& directory,
                             const Manifest& manifest);

// Writes config.json and model.safetensors (whole parameters, no optimizer state) into `out`,
// creating it if needed: the Hugging Face layout that serving loads. Rounds f32 parameters to the
// narrower type that `types` gives.
absl::Status ExportHuggingFace(FileSystem& files, const std::string& checkpoint_directory,
                               const std::string& config_json, const std::string& out,
                               const std::map<std::string, DType>& types = {});

}  // namespace espalier
