// Host memory that tensors are swapped to.
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

// Pages of this process, or, with a folder, of a file there that has no name and is gone with the
// process. ResourceExhausted, with the folder and what the system said, if there is no room for it.
absl::StatusOr<std::unique_ptr<HostMemory>> MapHostMemory(int64_t bytes, const std::string& folder);

}  // namespace espalier
