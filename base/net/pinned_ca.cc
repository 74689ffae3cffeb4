#include "base/net/pinned_ca.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/net/own_address.h"
#include "base/net/x509.h"
#include "third_party/openssl/pem.h"

namespace espalier {
namespace {

using openssl::Freer;
using TlsSettings = std::unique_ptr<SSL_CTX, Freer<SSL_CTX, SSL_CTX_free>>;
using Tls = std::unique_ptr<SSL, Freer<SSL, SSL_free>>;
using Trust = std::unique_ptr<X509_STORE, Freer<X509_STORE, X509_STORE_free>>;
using Check = std::unique_ptr<X509_STORE_CTX, Freer<X509_STORE_CTX, X509_STORE_CTX_free>>;

// gRPC's servers want to hear it.
constexpr unsigned char kHttp2[] = {2, 'h', '2'};

absl::Status NoAnswer(const std::string& address, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("no coordinator answers at ", address, " (", why, ")"));
}

absl::Status InTheMiddle(const std::string& address, absl::string_view why) {
  return absl::PermissionDeniedError(absl::StrCat(
      "the server at ", address, " is not the coordinator of this token: ", why,
      ". Somebody may be in the middle; or the coordinator's data folder is a new one, and needs a "
      "new token"));
}

absl::StatusOr<int> Connect(const HostAndPort& to, const std::string& address,
                            absl::Duration timeout) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(to.host.c_str(), absl::StrCat(to.port).c_str(), &hints, &list);
      error != 0) {
    return NoAnswer(address, gai_strerror(error));
  }
  const absl::Cleanup free_list = [list] { freeaddrinfo(list); };
  int number = ETIMEDOUT;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (fd < 0) continue;
    // Linux bounds connect(2) by the timeout for sending, too.
    const timeval limit = absl::ToTimeval(timeout);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0) return fd;
    number = errno == EINPROGRESS ? ETIMEDOUT : errno;
    close(fd);
  }
  return NoAnswer(address, std::strerror(number));
}

// Whether the shown certificate is the authority's, and of this host.
absl::Status Verify(SSL* tls, X509* authority, const std::string& host) {
  const Trust trust(X509_STORE_new());
  const Check check(X509_STORE_CTX_new());
  if (trust == nullptr || check == nullptr || X509_STORE_add_cert(trust.get(), authority) != 1 ||
      X509_STORE_CTX_init(check.get(), trust.get(), SSL_get0_peer_certificate(tls), nullptr) != 1) {
    return absl::InternalError("OpenSSL cannot verify a certificate");
  }
  X509_VERIFY_PARAM* const wanted = X509_STORE_CTX_get0_param(check.get());
  X509_VERIFY_PARAM_set_purpose(wanted, X509_PURPOSE_SSL_SERVER);
  unsigned char bytes[sizeof(in6_addr)];
  const bool numeric =
      inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
  if (numeric) {
    X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str());
  } else {
    X509_VERIFY_PARAM_set1_host(wanted, host.data(), host.size());
  }
  if (X509_verify_cert(check.get()) == 1) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("its certificate is not valid (",
                   X509_verify_cert_error_string(X509_STORE_CTX_get_error(check.get())), ")"));
}

}  // namespace

absl::StatusOr<std::string> FetchPinnedCa(const std::string& address, const std::string& sha256,
                                          absl::Duration timeout) {
  const absl::StatusOr<HostAndPort> to = ParseHostAndPort(address, "the coordinator's address");
  if (!to.ok()) return to.status();
  const absl::StatusOr<int> fd = Connect(*to, address, timeout);
  if (!fd.ok()) return fd.status();
  const absl::Cleanup close_it = [fd = *fd] { close(fd); };
  const absl::Cleanup forget = [] { ERR_clear_error(); };
  const TlsSettings settings(SSL_CTX_new(TLS_client_method()));
  if (settings == nullptr) return absl::InternalError("OpenSSL cannot make a TLS client");
  SSL_CTX_set_min_proto_version(settings.get(), TLS1_2_VERSION);
  // What is shown is verified below, by the hash.
  SSL_CTX_set_verify(settings.get(), SSL_VERIFY_NONE, nullptr);
  SSL_CTX_set_alpn_protos(settings.get(), kHttp2, sizeof kHttp2);
  const Tls tls(SSL_new(settings.get()));
  if (tls == nullptr || SSL_set_fd(tls.get(), *fd) != 1) {
    return absl::InternalError("OpenSSL cannot make a TLS connection");
  }
  if (SSL_connect(tls.get()) != 1) return NoAnswer(address, "it does not speak TLS, or hung up");
  std::string shown;
  STACK_OF(X509)* const chain = SSL_get_peer_cert_chain(tls.get());
  for (int i = 0; i < sk_X509_num(chain); ++i) {
    X509* const one = sk_X509_value(chain, i);
    const openssl::Source text(BIO_new(BIO_s_mem()));
    if (text == nullptr || PEM_write_bio_X509(text.get(), one) != 1) continue;
    char* bytes = nullptr;
    const long length = BIO_get_mem_data(text.get(), &bytes);
    const std::string pem(bytes, static_cast<size_t>(length));
    const absl::StatusOr<std::string> hash = PublicKeySha256(pem);
    if (!hash.ok()) continue;
    if (*hash != sha256) {
      shown = *hash;
      continue;
    }
    if (absl::Status s = Verify(tls.get(), one, to->host); !s.ok()) {
      return InTheMiddle(address, s.message());
    }
    return pem;
  }
  return InTheMiddle(
      address, absl::StrCat("its CA has the SHA-256 ", shown, ", and the token names ", sha256));
}

}  // namespace espalier
