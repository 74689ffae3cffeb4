// Files on this host's disk, by the SHA-256 of their contents: downloaded datasets, blocks of
// models, shards of checkpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/file_system.h"

namespace espalier {

// A folder that belongs to this user alone. Nothing in it is trusted nevertheless: what is read has
// the SHA-256 that was asked for, or is removed. The least recently used files go when there is no
// room. Thread-safe; several processes may share a folder.
class HostCache {
 public:
  // Makes "espalier-cache-<user id>" in `parent`, which is made if missing; empty: the system's
  // temporary folder. FailedPrecondition, with the remedy, if something there belongs to another
  // user or is a link. At most `max_bytes` are kept; 0: none.
  static absl::StatusOr<std::unique_ptr<HostCache>> Open(const std::string& parent,
                                                         int64_t max_bytes);
  ~HostCache();

  // Returns the content, or nullopt if it is not there.
  std::optional<std::string> Read(const std::string& sha256, int64_t bytes);

  // Keeps a copy of `content`, which has this hash, if there is room. Failures are logged: without
  // the copy the next job downloads it again.
  void Write(const std::string& sha256, const std::string& content);

  // The same of content that has no hash yet: `version` names it, and no other content, as the ETag
  // of an object does. A note in the folder says which hash that content has.
  std::optional<std::string> ReadVersion(const std::string& version, int64_t bytes);
  void WriteVersion(const std::string& version, const std::string& content);

  // A file that is written in pieces. Not thread-safe; must not outlive the cache.
  class Writer {
   public:
    virtual ~Writer() = default;  // without Keep nothing is left
    // ResourceExhausted if the file is larger than the cache, or the disk is full.
    virtual absl::Status Append(const void* data, int64_t bytes) = 0;
    // Keeps the file. Returns its SHA-256; at most once.
    virtual absl::StatusOr<std::string> Keep() = 0;
  };
  absl::StatusOr<std::unique_ptr<Writer>> NewFile();
  // Opens a file for reads of ranges, which do not check its hash. Null if there is none. Removing
  // the file does not affect what is open.
  std::unique_ptr<ReadableFile> OpenFile(const std::string& sha256);
  void Remove(const std::string& sha256);

  const std::string& path() const { return path_; }
  int64_t max_bytes() const { return max_bytes_; }

 private:
  HostCache(std::string path, int folder, int64_t max_bytes)
      : path_(std::move(path)), folder_(folder), max_bytes_(max_bytes) {}

  class FileWriter;
  class OpenedFile;

  // Makes a file of a temporary name, which is returned; the descriptor in `*file`.
  absl::StatusOr<std::string> Create(int* file);
  // Gives a written file of so many bytes its name. Removes it if that fails.
  absl::Status Publish(const std::string& temporary, const std::string& name, int64_t bytes);
  // Removes the least recently used files until `bytes` more are allowed.
  void MakeRoom(int64_t bytes);

  const std::string path_;
  absl::Mutex writing_;
  const int folder_;  // descriptor: the folder stays the same if its name gets another
  const int64_t max_bytes_;
};

}  // namespace espalier
