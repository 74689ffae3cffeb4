#include "worker/checkpoint/sha256.h"

#include <openssl/evp.h>

#include <algorithm>
#include <vector>

#include "absl/strings/escaping.h"

namespace espalier {

struct Sha256::Context {
  EVP_MD_CTX* digest = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(digest); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  EVP_DigestInit_ex(context_->digest, EVP_sha256(), nullptr);
}
Sha256::~Sha256() = default;

void Sha256::Add(const void* data, int64_t bytes) {
  EVP_DigestUpdate(context_->digest, data, static_cast<size_t>(bytes));
}

std::string Sha256::Hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  EVP_DigestFinal_ex(context_->digest, digest, &length);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), length));
}

absl::StatusOr<std::string> Sha256OfFile(FileSystem& files, const std::string& path) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = files.Open(path);
  if (!file.ok()) return file.status();
  Sha256 hash;
  std::vector<char> block(1 << 20);
  for (int64_t at = 0; at < (*file)->size();) {
    const int64_t bytes =
        std::min<int64_t>(static_cast<int64_t>(block.size()), (*file)->size() - at);
    if (absl::Status s = (*file)->Read(at, bytes, block.data()); !s.ok()) return s;
    hash.Add(block.data(), bytes);
    at += bytes;
  }
  return hash.Hex();
}

}  // namespace espalier
