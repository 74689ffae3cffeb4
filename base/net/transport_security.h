// Transport security (TLS) of what the daemons listen on, and of the calls between them.
#pragma once

#include <memory>
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

// The contents of TlsFiles.
struct TlsPem {
  std::string certificate, key, ca, client_ca;
  bool operator==(const TlsPem&) const = default;
};

// What the files hold, as far as it is right. Copies share it. Thread-safe.
class TransportSecurity {
 public:
  // None: everything in the clear.
  TransportSecurity() = default;
  // InvalidArgument naming the file that cannot be read or understood, whose certificate has
  // expired or is not the key's, or which another one needs and is not given.
  static absl::StatusOr<TransportSecurity> Read(const TlsFiles& files);

  // Reads the files again. True if they held something new that was right, which pem() and the
  // paths below have from then on; else all stays as it was, and an error is as Read's.
  absl::StatusOr<bool> Reload();

  // Decided by which files there are: reloading does not change it.
  bool serves() const;
  bool calls() const;

  TlsPem pem() const;

  // Files in memory that always hold what was right last, for who reads files alone (gRPC does):
  // the key and its certificates in one, and the two lists of trusted ones. Empty: there is none.
  std::string identity_path() const;
  std::string ca_path() const;
  std::string client_ca_path() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// "127.0.0.1:80", "localhost", "[::1]:80".
bool IsLoopback(absl::string_view address);

}  // namespace espalier
