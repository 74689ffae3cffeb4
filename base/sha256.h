// SHA-256 by OpenSSL, written as lower-case hexadecimal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// Hashes bytes that arrive in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Add(absl::string_view bytes);
  void Add(const void* data, int64_t bytes) {
    Add({static_cast<const char*>(data), static_cast<size_t>(bytes)});
  }

  // Returns the hash of all bytes added. Ends the hash: call it once.
  std::string Hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// Returns the hash of `bytes`.
std::string Sha256Hex(absl::string_view bytes);

// Returns the hash of a file's content. Returns NotFound or another error of open(2) with the path
// if the file cannot be opened, FailedPrecondition if it cannot be read.
absl::StatusOr<std::string> Sha256OfFile(const std::string& path);

}  // namespace espalier
