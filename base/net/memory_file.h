// A file that is in memory alone, for who takes secrets by a path.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

class MemoryFile {
 public:
  // Unavailable if the system gives none.
  static absl::StatusOr<std::unique_ptr<MemoryFile>> Make(absl::string_view contents);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;

  // For this process alone, while this object lives.
  std::string path() const;

  // At once: who opens the path gets all of the old contents or all of the new ones. After an error
  // they are the old ones.
  absl::Status Replace(absl::string_view contents);

 private:
  explicit MemoryFile(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace espalier
