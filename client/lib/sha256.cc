#include "client/lib/sha256.h"

#include <openssl/evp.h>

#include <cerrno>
#include <fstream>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace espalier {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr);
}
Sha256::~Sha256() = default;

void Sha256::Update(absl::string_view bytes) {
  EVP_DigestUpdate(state_->context, bytes.data(), bytes.size());
}

std::string Sha256::Hex() {
  unsigned char sum[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(state_->context, sum, &size);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(sum), size));
}

absl::StatusOr<std::string> Sha256OfFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  Sha256 sum;
  std::vector<char> block(1 << 20);
  while (in) {
    in.read(block.data(), static_cast<std::streamsize>(block.size()));
    sum.Update(absl::string_view(block.data(), static_cast<size_t>(in.gcount())));
  }
  if (in.bad() || !in.eof())
    return absl::FailedPreconditionError(absl::StrCat("cannot read ", path));
  return sum.Hex();
}

}  // namespace espalier
