// A checkpoint is a folder of shards and a manifest.json, which the coordinator writes last, when
// every rank's shard is durable. A folder without a manifest is not a checkpoint. Values that
// training does not change are in files beside the folder, which the checkpoints of an attempt
// share.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "ops/tensor/dtype.h"
#include "storage/checkpoint_store.h"

namespace espalier {

constexpr char kManifestFile[] = "manifest.json";
constexpr int64_t kMaxManifestBytes = 64 << 20;

struct ManifestFile {
  std::string name;    // no "/"
  std::string sha256;  // lower-case hex
  int64_t bytes = 0;
  bool shared = false;  // beside the folder, not within: other checkpoints have it, too
};

struct Manifest {
  // As read. What is written has the version of the first program that can read it: 2 with shared
  // files, else 1.
  int format_version = 1;
  std::string job_id;
  int64_t steps_done = 0;  // the next step to run
  std::string graph_fingerprint;
  std::vector<ManifestFile>
      files;  // by rank, of each at most one that is shared and one that is not
};

// Returns the name in the store of a file of the checkpoint in `folder`.
std::string PathOf(const std::string& folder, const ManifestFile& file);

// The manifest is durable when this returns. AlreadyExists if another one is there: a second
// coordinator has written it.
absl::Status WriteManifest(CheckpointStore& store, const std::string& folder,
                           const Manifest& manifest);

// Returns NotFound without a manifest; DataLoss naming the field if it is invalid;
// FailedPrecondition if a newer version wrote it.
absl::StatusOr<Manifest> ReadManifest(ObjectReader& store, const std::string& folder);

// Returns DataLoss naming the first file that is missing or of another size, shared ones included.
// CheckpointReader::Verify checks contents.
absl::Status CheckShardSizes(ObjectReader& store, const std::string& folder,
                             const Manifest& manifest);

// Writes config.json and model.safetensors (the checkpoint's whole parameters, no optimizer state)
// into the folder `out` of `files`, creating it if needed: the Hugging Face layout that serving
// loads. Rounds f32 parameters to the narrower type that `types` gives.
absl::Status ExportHuggingFace(ObjectReader& store, const std::string& checkpoint,
                               const std::string& config_json, FileSystem& files,
                               const std::string& out,
                               const std::map<std::string, DType>& types = {});

}  // namespace espalier
