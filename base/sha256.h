// SHA-256 by OpenSSL, as it is written in manifests: lower-case hex.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace espalier {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Add(const void* data, int64_t bytes);
  // Of everything added. Call once.
  std::string Hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace espalier
