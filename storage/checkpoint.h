// Sharded checkpoints: every rank writes what it holds, any number of ranks reads any region back.
//
// A shard file rank-<r>.safetensors has one tensor per kept buffer, named "<buffer>@<start,...>"
// with the first element's place in the whole tensor; its metadata maps that name to the JSON
// {"global": [...], "kind": "parameter" | "state"}.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/tensor/view.h"
#include "base/file_system.h"
#include "storage/manifest.h"
#include "storage/safetensors.h"
#include "base/sha256.h"

namespace espalier {

struct CheckpointEntry {
  std::string name;  // of the buffer
  TensorSpec spec;
  bool is_state = false;  // of the optimiser, not a parameter
};

// Hands out an entry's bytes when they are written.
class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;
  virtual absl::Status Read(int entry, std::vector<char>* bytes) = 0;
};

// Makes `directory` and writes rank-<rank>.safetensors into it; durable when it returns. After an
// error (ResourceExhausted: disk full) no file of that name is left.
absl::StatusOr<ManifestFile> WriteCheckpointShard(FileSystem& files, const std::string& directory,
                                                  int rank,
                                                  const std::vector<CheckpointEntry>& entries,
                                                  CheckpointSource& source);

class CheckpointReader {
 public:
  struct Tensor {
    DType dtype = DType::kInvalid;
    Dims global;
    bool is_state = false;
  };

  // Reads the manifest and all shards' headers, and checks their sizes. DataLoss names the file.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(FileSystem& files,
                                                                const std::string& directory);

  const Manifest& manifest() const { return manifest_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  // Fills `host` with the region spec.offset, spec.dims of tensor `name`, from however many shards
  // hold it. NotFound lists what is there; InvalidArgument if type or whole shape differ; DataLoss
  // if no shard holds some of it. Nothing of it may be used before Verify has said that it is
  // whole.
  absl::Status Read(const std::string& name, const TensorSpec& spec, void* host);

  // Compares the hashes of the shards from which something was read, and of no others, with the
  // manifest's. What was read in the order of the file is not read again. DataLoss names the file.
  absl::Status Verify();

 private:
  struct Shard {
    std::unique_ptr<SafetensorsFile> file;
    std::string sha256;  // that it should have
    Sha256 hash;
    int64_t hashed = 0;  // bytes so far, from its beginning on
  };
  struct Piece {
    Shard* shard;
    const SafetensorsEntry* entry;
    Dims start;
  };

  absl::Status AddShard(Shard& shard);
  // Hashes the file on, up to `end`, by reading it.
  static absl::Status HashUpTo(int64_t end, Shard& shard);

  Manifest manifest_;
  std::deque<Shard> shards_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::vector<Piece>> pieces_;
};

}  // namespace espalier
