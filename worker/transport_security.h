// Transport security (TLS) of what the daemons listen on, and of the calls between them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// PEM files; empty: none.
struct TlsFiles {
  std::string certificate;  // a chain, own certificate first
  std::string key;          // of that certificate, without a password
  std::string ca;           // trusted when this process calls others
  std::string client_ca;    // signed the certificates that callers have to show
};

// What the files hold. Immutable.
class TransportSecurity {
 public:
  // None: everything in the clear.
  TransportSecurity() = default;
  // InvalidArgument naming the file that cannot be read or understood, whose certificate has
  // expired or is not the key's, or which another one needs and is not given.
  static absl::StatusOr<TransportSecurity> Read(const TlsFiles& files);

  bool serves() const { return !certificate_.empty(); }
  bool calls() const { return !ca_.empty(); }

  // Contents.
  const std::string& certificate() const { return certificate_; }
  const std::string& key() const { return key_; }
  const std::string& ca() const { return ca_; }
  const std::string& client_ca() const { return client_ca_; }

 private:
  std::string certificate_, key_, ca_, client_ca_;
};

// "127.0.0.1:80", "localhost", "[::1]:80".
bool IsLoopback(absl::string_view address);

}  // namespace espalier
