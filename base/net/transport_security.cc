#include "base/net/transport_security.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/net/memory_file.h"
#include "base/net/private_file.h"
#include "third_party/openssl/pem.h"

namespace espalier {
namespace {

using openssl::Certificate;

absl::Status Wrong(const char* flag, const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", path, ": ", what));
}

absl::StatusOr<std::string> ReadFile(const char* flag, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::string out(std::istreambuf_iterator<char>(file), {});
  if (!file.good() && !file.eof()) return Wrong(flag, path, "cannot be read");
  if (out.empty()) return Wrong(flag, path, "cannot be read, or is empty");
  return out;
}

absl::StatusOr<Certificate> FirstCertificate(const char* flag, const std::string& path,
                                             const std::string& pem) {
  Certificate out = openssl::NextCertificate(openssl::Open(pem).get());
  if (out == nullptr) return Wrong(flag, path, "holds no certificate in PEM form");
  if (X509_cmp_current_time(X509_get0_notAfter(out.get())) < 0) {
    return Wrong(flag, path, "the certificate has expired");
  }
  return out;
}

// Validated contents.
absl::StatusOr<TlsPem> ReadPem(const TlsFiles& files) {
  TlsPem out;
  const struct {
    const char* flag;
    const std::string& path;
    std::string* to;
  } all[] = {{"tls-cert", files.certificate, &out.certificate},
             {"tls-key", files.key, &out.key},
             {"tls-ca", files.ca, &out.ca},
             {"tls-client-ca", files.client_ca, &out.client_ca}};
  for (const auto& [flag, path, to] : all) {
    absl::StatusOr<std::string> pem = ReadFile(flag, path);
    if (!pem.ok()) return pem.status();
    *to = *std::move(pem);
    if (path.empty() || to == &out.key) continue;
    if (auto certificate = FirstCertificate(flag, path, *to); !certificate.ok()) {
      return certificate.status();
    }
  }
  if (out.certificate.empty()) return out;
  const openssl::PrivateKey key = openssl::KeyIn(out.key);
  if (key == nullptr) {
    return Wrong("tls-key", files.key, "holds no private key in PEM form that needs no password");
  }
  if (absl::Status s = CheckPrivateFile("tls-key", files.key); !s.ok()) return s;
  const auto own = FirstCertificate("tls-cert", files.certificate, out.certificate);
  if (!own.ok()) return own.status();
  if (X509_check_private_key(own->get(), key.get()) != 1) {
    return Wrong("tls-key", files.key,
                 absl::StrCat("is not the key of the first certificate in ", files.certificate));
  }
  return out;
}

std::string Identity(const TlsPem& pem) { return absl::StrCat(pem.key, "\n", pem.certificate); }

std::string PathOf(const std::unique_ptr<MemoryFile>& file) { return file ? file->path() : ""; }

}  // namespace

struct TransportSecurity::State {
  TlsFiles files;
  std::unique_ptr<MemoryFile> identity, ca, client_ca;  // null: not given
  absl::Mutex mutex;                                    // also guards the files' contents
  TlsPem pem ABSL_GUARDED_BY(mutex);
};

absl::StatusOr<TransportSecurity> TransportSecurity::Read(const TlsFiles& files) {
  if (files.certificate.empty() != files.key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key go together: one of them is given");
  }
  if (!files.client_ca.empty() && files.certificate.empty()) {
    return Wrong("tls-client-ca", files.client_ca,
                 "callers can only be asked for certificates with --tls-cert and --tls-key");
  }
  absl::StatusOr<TlsPem> pem = ReadPem(files);
  if (!pem.ok()) return pem.status();
  TransportSecurity out;
  out.state_ = std::make_shared<State>();
  State& state = *out.state_;
  state.files = files;
  const struct {
    const std::string& pem;
    std::string contents;
    std::unique_ptr<MemoryFile>* to;
  } all[] = {{pem->certificate, Identity(*pem), &state.identity},
             {pem->ca, pem->ca, &state.ca},
             {pem->client_ca, pem->client_ca, &state.client_ca}};
  for (const auto& [given, contents, to] : all) {
    if (given.empty()) continue;
    absl::StatusOr<std::unique_ptr<MemoryFile>> file = MemoryFile::Make(contents);
    if (!file.ok()) return file.status();
    *to = *std::move(file);
  }
  absl::MutexLock lock(&state.mutex);
  state.pem = *std::move(pem);
  return out;
}

absl::StatusOr<bool> TransportSecurity::Reload() {
  if (state_ == nullptr) return false;
  absl::MutexLock lock(&state_->mutex);
  absl::StatusOr<TlsPem> pem = ReadPem(state_->files);
  if (!pem.ok()) return pem.status();
  if (*pem == state_->pem) return false;
  const std::pair<const std::unique_ptr<MemoryFile>&, std::string> all[] = {
      {state_->identity, Identity(*pem)},
      {state_->ca, pem->ca},
      {state_->client_ca, pem->client_ca}};
  for (const auto& [file, contents] : all) {
    if (file == nullptr) continue;
    if (absl::Status status = file->Replace(contents); !status.ok()) return status;
  }
  state_->pem = *std::move(pem);
  return true;
}

bool TransportSecurity::serves() const { return state_ && state_->identity; }
bool TransportSecurity::calls() const { return state_ && state_->ca; }
bool TransportSecurity::client_certificates_optional() const {
  return state_ && state_->files.client_certificates_optional;
}

TlsPem TransportSecurity::pem() const {
  if (state_ == nullptr) return {};
  absl::MutexLock lock(&state_->mutex);
  return state_->pem;
}

std::string TransportSecurity::identity_path() const {
  return state_ ? PathOf(state_->identity) : "";
}
std::string TransportSecurity::ca_path() const { return state_ ? PathOf(state_->ca) : ""; }
std::string TransportSecurity::client_ca_path() const {
  return state_ ? PathOf(state_->client_ca) : "";
}

bool IsLoopback(absl::string_view address) {
  std::string host(address);
  if (absl::StartsWith(host, "[")) {
    host = host.substr(1, host.find(']') - 1);
  } else if (std::count(host.begin(), host.end(), ':') == 1) {
    host.resize(host.find(':'));
  }
  // Not by the beginning: 127.0.0.1.example.com may be any host.
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return absl::EqualsIgnoreCase(host, "localhost");
}

}  // namespace espalier
