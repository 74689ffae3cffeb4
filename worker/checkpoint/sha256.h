// SHA-256 by OpenSSL, as it is written in manifests: lower-case hex.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/checkpoint/file_system.h"

namespace espalier {

class Sha256 {
 public:
  Sha256();
  ~Sha256();

  void Add(const void* data, int64_t bytes);
  // Of everything added. Call once.
  std::string Hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

absl::StatusOr<std::string> Sha256OfFile(FileSystem& files, const std::string& path);

}  // namespace espalier
