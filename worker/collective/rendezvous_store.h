// Key-value store through which ranks find each other (as PyTorch's Store): the coordinator's in a
// cluster, a map in tests.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace espalier {

// Thread-safe.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;

  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is set. Returns DeadlineExceeded, naming the key, after `timeout`.
  virtual absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) = 0;
};

}  // namespace espalier
