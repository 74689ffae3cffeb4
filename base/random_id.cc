#include "base/random_id.h"

#include <openssl/rand.h>

#include "absl/strings/escaping.h"

namespace espalier {

absl::StatusOr<std::string> RandomId() {
  std::string bytes(16, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) !=
      1) {
    return absl::InternalError("the system cannot provide random numbers for an id");
  }
  return absl::BytesToHexString(bytes);
}

}  // namespace espalier
