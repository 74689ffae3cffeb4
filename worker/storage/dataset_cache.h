// Downloaded datasets on this host's disk, by the SHA-256 of their contents.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace espalier {

// A folder that belongs to this user alone. Nothing in it is trusted nevertheless: what is read has
// the SHA-256 that was asked for, or is removed. The least recently used files go when there is no
// room. Thread-safe; several processes may share a folder.
class DatasetCache {
 public:
  // Makes "espalier-datasets-<user id>" in `parent`, which is made if missing; empty: the system's
  // temporary folder. FailedPrecondition, with the remedy, if something there belongs to another
  // user or is a link. At most `max_bytes` are kept; 0: none.
  static absl::StatusOr<std::unique_ptr<DatasetCache>> Open(const std::string& parent,
                                                            int64_t max_bytes);
  ~DatasetCache();

  // Returns the content, or nullopt if it is not there.
  std::optional<std::string> Read(const std::string& sha256, int64_t bytes);

  // Keeps a copy of `content`, which has this hash, if there is room. Failures are logged: without
  // the copy the next job downloads it again.
  void Write(const std::string& sha256, const std::string& content);

  // The same of content that has no hash yet: `version` names it, and no other content, as the ETag
  // of an object does. A note in the folder says which hash that content has.
  std::optional<std::string> ReadVersion(const std::string& version, int64_t bytes);
  void WriteVersion(const std::string& version, const std::string& content);

  const std::string& path() const { return path_; }

 private:
  DatasetCache(std::string path, int folder, int64_t max_bytes)
      : path_(std::move(path)), folder_(folder), max_bytes_(max_bytes) {}

  // Removes the least recently used files until `bytes` more are allowed.
  void MakeRoom(int64_t bytes);
  absl::Status WriteFile(const std::string& name, const std::string& content);

  const std::string path_;
  absl::Mutex writing_;
  const int folder_;  // descriptor: the folder stays the same if its name gets another
  const int64_t max_bytes_;
};

}  // namespace espalier
