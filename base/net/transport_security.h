// TLS settings of the daemons' servers and of calls between them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// PEM files; empty: none.
struct TlsFiles {
  std::string certificate;  // a chain, own certificate first
  std::string key;          // of that certificate, unencrypted
  std::string ca;           // trusted when this process calls others
  std::string client_ca;    // CA of the certificates required of callers
  // Callers without a certificate are accepted, too: they show something else. What is shown is
  // verified all the same.
  bool client_certificates_optional = false;
};

// The contents of TlsFiles.
struct TlsPem {
  std::string certificate, key, ca, client_ca;
  bool operator==(const TlsPem&) const = default;
};

// The validated contents of the files. Copies share it. Thread-safe.
class TransportSecurity {
 public:
  // No TLS.
  TransportSecurity() = default;
  // Returns InvalidArgument naming a file that cannot be read or parsed, whose key is open to other
  // users (private_file.h), whose certificate has expired or does not match the key, or that is
  // missing though another one needs it.
  static absl::StatusOr<TransportSecurity> Read(const TlsFiles& files);

  // Reads the files again. Returns true if pem() and the paths below changed. Errors are those of
  // Read and leave everything unchanged.
  absl::StatusOr<bool> Reload();

  // Depends on which files were given; a reload does not change it.
  bool serves() const;
  bool calls() const;
  bool client_certificates_optional() const;

  TlsPem pem() const;

  // In-memory files with the last valid contents, for libraries that only read files (gRPC): key
  // and certificate chain together, and the two CA lists. Empty if not given.
  std::string identity_path() const;
  std::string ca_path() const;
  std::string client_ca_path() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Whether a host, with or without a port, is this machine's loopback by its name alone:
// "127.0.0.1:80", "localhost", "[::1]:80".
bool IsLoopback(absl::string_view address);

}  // namespace espalier
