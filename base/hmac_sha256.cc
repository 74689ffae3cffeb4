#include "base/hmac_sha256.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

namespace espalier {

std::string HmacSha256(absl::string_view key, absl::string_view message) {
  unsigned char code[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(message.data()), message.size(), code, &length);
  return std::string(reinterpret_cast<const char*>(code), length);
}

}  // namespace espalier
