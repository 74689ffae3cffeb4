// Sharded checkpoints: every rank writes what it holds, any number of ranks reads any region back.
//
// A shard file rank-<r>.safetensors has one tensor per kept buffer, named "<buffer>@<start,...>"
// with the first element's place in the whole tensor; its metadata maps that name to the JSON
// {"global": [...], "kind": "parameter" | "state"}.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/tensor/view.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors.h"

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

  // Reads the manifest and all shards' headers, and checks sizes and hashes. DataLoss names the
  // file.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(FileSystem& files,
                                                                const std::string& directory);

  const Manifest& manifest() const { return manifest_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  // Fills `host` with the region spec.offset, spec.dims of tensor `name`, from however many shards
  // hold it. NotFound lists what is there; InvalidArgument if type or whole shape differ; DataLoss
  // if no shard holds some of it.
  absl::Status Read(const std::string& name, const TensorSpec& spec, void* host) const;

 private:
  struct Piece {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
    Dims start;
  };

  absl::Status AddShard(const SafetensorsFile& file);

  Manifest manifest_;
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::vector<Piece>> pieces_;
};

}  // namespace espalier
