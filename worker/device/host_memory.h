// Host memory that holds swapped-out tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace espalier {

class HostMemory {
 public:
  HostMemory(char* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  virtual ~HostMemory() = default;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  char* data_;
  int64_t bytes_;
};

// Allocates anonymous pages, or, with a folder, maps an unnamed file there that vanishes with the
// process. Returns ResourceExhausted, with the folder and the system's message, if there is no
// space.
absl::StatusOr<std::unique_ptr<HostMemory>> MapHostMemory(int64_t bytes, const std::string& folder);

}  // namespace espalier
