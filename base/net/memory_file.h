// A file that exists only in memory, for libraries that read secrets by path.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

class MemoryFile {
 public:
  // Returns Unavailable if the system cannot create one.
  static absl::StatusOr<std::unique_ptr<MemoryFile>> Make(absl::string_view contents);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;

  // Path valid in this process while this object exists.
  std::string path() const;

  // Atomic: a reader that opens the path gets the whole old or the whole new contents. On error the
  // old contents stay.
  absl::Status Replace(absl::string_view contents);

 private:
  explicit MemoryFile(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace espalier
