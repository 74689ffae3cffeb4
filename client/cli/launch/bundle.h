// The programs that a launch copies to hosts.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace espalier {

// A file that goes with this object.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// A tar file, and the SHA-256 of its content, by which hosts that have it are known.
struct Bundle {
  std::string file;
  std::string key;
  std::unique_ptr<const TemporaryFile> made;  // `file`, unless it is the user's
};

// Returns the bundle of a file or folder; if `given` is empty, that of which this program is part.
// FailedPrecondition if it is part of none.
absl::StatusOr<Bundle> FindBundle(const std::string& given, const std::string& program);

}  // namespace espalier
