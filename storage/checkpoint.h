// Sharded checkpoints: every rank writes what it holds; any number of ranks can read any region.
//
// A shard file rank-<r>.safetensors has one tensor per saved buffer, named "<buffer>@<start,...>",
// where start is its offset in the whole tensor. Its metadata maps that name to the JSON
// {"global": [...], "kind": "parameter" | "state"}. unchanged-rank-<r>.safetensors, beside the
// checkpoint's folder, is alike; a tensor's regions may be in files of both kinds.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sha256.h"
#include "ops/tensor/view.h"
#include "storage/checkpoint_store.h"
#include "storage/manifest.h"
#include "storage/safetensors.h"

namespace espalier {

struct CheckpointEntry {
  std::string name;  // of the buffer
  TensorSpec spec;
  bool is_state = false;  // optimizer state, not a parameter
};

// Provides an entry's bytes when it is written.
class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;
  virtual absl::Status Read(int entry, std::vector<char>* bytes) = 0;
  // The bytes, if they are in memory; null: Read copies them.
  virtual const char* Data(int /*entry*/) { return nullptr; }
};

// Writes <folder>/rank-<rank>.safetensors, durably. On error (ResourceExhausted: disk full) leaves
// no object of that name.
absl::StatusOr<ManifestFile> WriteCheckpointShard(CheckpointStore& store, const std::string& folder,
                                                  int rank,
                                                  const std::vector<CheckpointEntry>& entries,
                                                  CheckpointSource& source);

// The same of values that all checkpoints of an attempt have, in unchanged-rank-<rank>.safetensors
// beside `folder`.
absl::StatusOr<ManifestFile> WriteUnchangedShard(CheckpointStore& store, const std::string& folder,
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

  // Reads the manifest and all shard headers, and checks file sizes. Returns DataLoss naming the
  // file.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(ObjectReader& store,
                                                                const std::string& folder);

  const Manifest& manifest() const { return manifest_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  // Fills `host` with region spec.offset, spec.dims of tensor `name`, from as many shards as hold
  // it. Reads only the rows (dimension 0) of the region, so that a large tensor can be read in
  // parts. Returns NotFound listing the tensors; InvalidArgument if type or global shape differ;
  // DataLoss if no shard holds a part. The data must not be used before Verify succeeds.
  absl::Status Read(const std::string& name, const TensorSpec& spec, void* host);

  // Checks the SHA-256 of every shard that Read used against the manifest. Bytes that were read in
  // file order are not read again. Returns DataLoss naming the file.
  absl::Status Verify();
  // Checks the SHA-256 of every shard, used or not and shared ones included, by reading them.
  // Before each file it asks `stopped`, if given, and returns Cancelled if that is true.
  absl::Status VerifyAll(const std::function<bool()>& stopped = nullptr);

 private:
  struct Shard {
    std::unique_ptr<SafetensorsFile> file;
    std::string sha256;  // expected
    Sha256 hash;
    int64_t hashed = 0;  // bytes hashed from the start
  };
  struct Piece {
    Shard* shard;
    const SafetensorsEntry* entry;
    Dims start;
  };

  absl::Status AddShard(Shard& shard);
  // Hashes the file up to `end` by reading it.
  static absl::Status HashUpTo(int64_t end, Shard& shard);
  // Hashes what is left of the file, compares, and begins again.
  static absl::Status CheckHash(Shard& shard);

  Manifest manifest_;
  std::deque<Shard> shards_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::vector<Piece>> pieces_;
};

}  // namespace espalier
