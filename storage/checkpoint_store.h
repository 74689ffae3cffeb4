// Where checkpoints are kept: a folder that all hosts share, the coordinator's disk behind gRPC, or
// an object store. Names are "<job>/attempt-<n>/<checkpoint>/rank-<r>.safetensors"; see
// object_reader.h. An object appears whole, and durably, or not at all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/object_reader.h"

namespace espalier {

// Thread-safe. Errors are those of ObjectReader, and ResourceExhausted if there is no room.
class CheckpointStore : public ObjectReader {
 public:
  // An object that is being written. Not thread-safe. Without a successful Commit there is no
  // object of that name, or still the former one.
  class Upload {
   public:
    virtual ~Upload() = default;
    virtual absl::Status Append(const void* data, int64_t bytes) = 0;
    // The object is durable once this returns. At most once; no call may follow.
    virtual absl::Status Commit() = 0;
  };

  // Writes an object, in place of one with the same name.
  virtual absl::StatusOr<std::unique_ptr<Upload>> Put(const std::string& name) = 0;
  // Writes a small object unless there is one. Returns AlreadyExists if there is one with other
  // content.
  virtual absl::Status PutIfAbsent(const std::string& name, const std::string& content) = 0;
  // Removes the object of this name and all beneath it as a folder, with incomplete uploads, but
  // not the objects and folders named in `keep`. OK if there is nothing.
  virtual absl::Status DeleteExcept(const std::string& name,
                                    const std::vector<std::string>& keep) = 0;
  absl::Status Delete(const std::string& name) { return DeleteExcept(name, {}); }
};

}  // namespace espalier
