// SHA-256 of what is fed in pieces, in hexadecimal.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void Update(absl::string_view bytes);
  std::string Hex();  // ends the sum: call it once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// NotFound or FailedPrecondition with the path if it cannot be read.
absl::StatusOr<std::string> Sha256OfFile(const std::string& path);

}  // namespace espalier
