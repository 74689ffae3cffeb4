// X.509 certificates and requests for them, as PEM texts, with P-256 keys.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace espalier {

struct CertificateFields {
  std::string common_name;  // at most 64 bytes, as the next two
  std::string organization;
  std::string organizational_unit;
  std::vector<std::string> hosts;  // names and IP addresses (without brackets) of its holder
  absl::Time not_before, not_after;
  bool authority = false;  // may sign others; if not, it is for servers and clients
};

// Returns a new private key.
absl::StatusOr<std::string> MakePrivateKey();

// Returns a certificate that its own key has signed.
absl::StatusOr<std::string> MakeSelfSigned(const CertificateFields& fields,
                                           const std::string& private_key);

// Returns a PKCS #10 request for a certificate of this key.
absl::StatusOr<std::string> MakeCertificateRequest(const std::vector<std::string>& hosts,
                                                   const std::string& private_key);

struct CertificateRequest {
  std::string public_key;         // DER, SubjectPublicKeyInfo
  std::string public_key_sha256;  // of that, hexadecimal
  std::vector<std::string> hosts;
};
// Returns InvalidArgument unless it is the request of somebody who has the private key, which is a
// P-256 one, for 1 to 64 hosts, each an IP address or a host name.
absl::StatusOr<CertificateRequest> ReadCertificateRequest(const std::string& pem);

// Returns a certificate of a public key (DER), signed by an authority.
absl::StatusOr<std::string> SignCertificate(const CertificateFields& fields,
                                            const std::string& public_key,
                                            const std::string& authority,
                                            const std::string& authority_key);
// The public key (DER) of a private key.
absl::StatusOr<std::string> PublicKeyOf(const std::string& private_key);

// The first certificate in the text. Returns InvalidArgument if there is none.
absl::StatusOr<CertificateFields> ReadCertificate(const std::string& pem);
// SHA-256 of the public key of the first certificate (DER, SubjectPublicKeyInfo), hexadecimal, as
// HTTP public key pins and kubeadm's discovery-token-ca-cert-hash have it.
absl::StatusOr<std::string> PublicKeySha256(const std::string& pem);

// Returns FailedPrecondition unless the first certificate in `pem` is signed by that in
// `authority`. Dates are not compared.
absl::Status CheckSignedBy(const std::string& pem, const std::string& authority);

}  // namespace espalier
