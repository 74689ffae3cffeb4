// TLS 1.3 between the ranks of one attempt of a job. Each rank makes a key and a certificate that
// live in memory until the attempt ends, and tells its peers the certificate's fingerprint through
// the rendezvous store; each end accepts only the certificates whose fingerprints it expects. So no
// certificate of the operator is needed, and a peer that cannot write to the store is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "worker/collective/byte_stream.h"
#include "worker/collective/descriptor.h"

namespace espalier {

class TlsIdentity {
 public:
  // Records (of at most 16 KiB) that one key encrypts: far below the 2^24.5 up to which AES-GCM
  // keeps its margin (RFC 8446, section 5.5). The sender then takes the next key.
  static constexpr int64_t kRecordsPerKey = int64_t{1} << 21;

  // Returns Internal if OpenSSL fails.
  static absl::StatusOr<std::unique_ptr<TlsIdentity>> Make(
      int64_t records_per_key = kRecordsPerKey);
  ~TlsIdentity();

  // SHA-256 of the certificate, in hexadecimal digits.
  const std::string& fingerprint() const { return fingerprint_; }

  // The streams may outlive this. `expected`: fingerprints of which the other end has one.
  std::unique_ptr<ByteStream> Connect(Descriptor socket, std::set<std::string> expected) const;
  std::unique_ptr<ByteStream> Accept(Descriptor socket, std::set<std::string> expected) const;

 private:
  struct Context;
  explicit TlsIdentity(std::shared_ptr<const Context> context, std::string fingerprint)
      : context_(std::move(context)), fingerprint_(std::move(fingerprint)) {}

  const std::shared_ptr<const Context> context_;
  const std::string fingerprint_;
};

}  // namespace espalier
