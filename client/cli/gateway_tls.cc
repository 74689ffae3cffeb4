#include "client/cli/gateway_tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "third_party/openssl/pem.h"

namespace espalier {
namespace {

using openssl::Certificate;
using openssl::NextCertificate;
using Context = std::unique_ptr<SSL_CTX, openssl::Freer<SSL_CTX, SSL_CTX_free>>;
using Session = std::unique_ptr<SSL, openssl::Freer<SSL, SSL_free>>;

constexpr int kHandshakeSeconds = 10;

// Clears this thread's OpenSSL error queue and returns its first error.
std::string TakeError() {
  const unsigned long first = ERR_get_error();
  ERR_clear_error();
  const char* text = first == 0 ? nullptr : ERR_reason_error_string(first);
  return text == nullptr ? "unknown error" : text;
}

absl::Status Roots(const std::string& pem, SSL_CTX* context) {
  if (pem.empty()) {
    if (SSL_CTX_set_default_verify_paths(context) == 1) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the system's trusted roots: ", TakeError()));
  }
  const openssl::Source source = openssl::Open(pem);
  int count = 0;
  for (Certificate root = NextCertificate(source.get()); root; root = NextCertificate(source.get()))
    count += X509_STORE_add_cert(SSL_CTX_get_cert_store(context), root.get());
  ERR_clear_error();  // of the end of the text
  if (count > 0) return absl::OkStatus();
  return absl::InvalidArgumentError("--ca-file holds no certificate in PEM form");
}

absl::Status OwnCertificate(const GatewayTls& tls, SSL_CTX* context) {
  if (tls.certificate.empty()) return absl::OkStatus();
  const openssl::Source source = openssl::Open(tls.certificate);
  const Certificate own = NextCertificate(source.get());
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) {
    return absl::InvalidArgumentError("--cert-file holds no certificate in PEM form");
  }
  for (Certificate next = NextCertificate(source.get()); next; next = NextCertificate(source.get()))
    if (SSL_CTX_add0_chain_cert(context, next.get()) == 1) next.release();
  ERR_clear_error();  // of the end of the text
  const openssl::PrivateKey key = openssl::KeyIn(tls.key);
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        "--key-file holds no private key in PEM form that needs no password");
  }
  if (SSL_CTX_use_PrivateKey(context, key.get()) == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--key-file is not the key of the first certificate in --cert-file");
}

bool IsIpAddress(const std::string& host) {
  unsigned char address[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), address) == 1;
}

absl::Status Timeout(int fd, int seconds) {
  const timeval timeout = {seconds, 0};
  if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0)
    return absl::OkStatus();
  return absl::InternalError(absl::StrCat("SO_RCVTIMEO: ", strerror(errno)));
}

}  // namespace

class TlsContext {
 public:
  explicit TlsContext(Context context) : context_(std::move(context)) {}
  SSL_CTX* get() const { return context_.get(); }

 private:
  const Context context_;
};

namespace {

class SecureConnection : public GatewayConnection {
 public:
  SecureConnection(const Gateway& gateway, Socket socket)
      : gateway_(gateway),
        context_(gateway.tls),
        host_(gateway.host),
        authority_(gateway.authority),
        socket_(std::move(socket)),
        session_(SSL_new(context_->get())) {}
  ~SecureConnection() override {
    if (open_) SSL_shutdown(session_.get());  // sends close_notify, does not wait for the peer's
    ERR_clear_error();
  }

  absl::Status Handshake() {
    ERR_clear_error();
    const bool named =
        IsIpAddress(host_)
            ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session_.get()), host_.c_str()) == 1
            : SSL_set1_host(session_.get(), host_.c_str()) == 1 &&
                  SSL_set_tlsext_host_name(session_.get(), host_.c_str()) == 1;
    if (!named || SSL_set_fd(session_.get(), socket_.fd()) != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", host_, "\" is not a host name for a certificate"));
    }
    if (absl::Status s = Timeout(socket_.fd(), kHandshakeSeconds); !s.ok()) return s;
    if (const int result = SSL_connect(session_.get()); result != 1) return Failed(result);
    open_ = shaken_ = true;
    return Timeout(socket_.fd(), gateway_.answer_seconds);
  }

  absl::Status Send(absl::string_view bytes) override {
    while (!bytes.empty()) {
      ERR_clear_error();
      const int n = SSL_write(session_.get(), bytes.data(),
                              static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX)));
      if (n <= 0) {
        // The peer's alert, sent before it closed, is still unread.
        char byte;
        const int got = SSL_get_error(session_.get(), n) == SSL_ERROR_SYSCALL
                            ? SSL_read(session_.get(), &byte, 1)
                            : n;
        return Failed(got > 0 ? n : got);
      }
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<size_t> Receive(char* block, size_t size) override {
    ERR_clear_error();
    const int n =
        SSL_read(session_.get(), block, static_cast<int>(std::min<size_t>(size, INT_MAX)));
    if (n > 0) return static_cast<size_t>(n);
    if (SSL_get_error(session_.get(), n) == SSL_ERROR_ZERO_RETURN) return size_t{0};
    return Failed(n);
  }

 private:
  absl::Status Failed(int result) {
    const int number = errno;
    const int kind = SSL_get_error(session_.get(), result);
    open_ = false;  // the session must not be used any more
    const auto unavailable = [&](const auto&... parts) {
      return absl::UnavailableError(
          absl::StrCat("TLS with the ", gateway_.words.what, " at ", authority_, ": ", parts...));
    };
    if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) {
      if (shaken_) {
        return Unreachable(gateway_,
                           absl::StrCat("nothing came within ", gateway_.answer_seconds, " s"));
      }
      return unavailable("nothing came within ", kHandshakeSeconds,
                         " s. Does it speak TLS? If not: ", gateway_.words.flag, "=http://",
                         authority_);
    }
    const unsigned long error = ERR_peek_error();
    const int reason = ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0;
    switch (reason) {
      case SSL_R_CERTIFICATE_VERIFY_FAILED: {
        const long verified = SSL_get_verify_result(session_.get());
        ERR_clear_error();
        if (verified == X509_V_ERR_HOSTNAME_MISMATCH || verified == X509_V_ERR_IP_ADDRESS_MISMATCH)
          return unavailable("its certificate is not for ", host_,
                             ". Name the host as the certificate does: ", gateway_.words.flag,
                             "=HOST:PORT");
        return unavailable("its certificate is not trusted (",
                           X509_verify_cert_error_string(verified),
                           "). Name the authority that signed it: ", gateway_.words.trust);
      }
      case SSL_R_WRONG_VERSION_NUMBER:
      case SSL_R_HTTP_REQUEST:
        ERR_clear_error();
        return unavailable("it does not use TLS. Without TLS: ", gateway_.words.flag, "=http://",
                           authority_, " without --tls and --ca-file");
      case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
      case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
      case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
        return unavailable(
            "it refuses the connection (", TakeError(),
            "). It requires a client certificate that it trusts: --cert-file=FILE and "
            "--key-file=FILE");
      case SSL_R_UNEXPECTED_EOF_WHILE_READING:
        ERR_clear_error();
        return unavailable("it closed the connection early");
      default:
        break;
    }
    if (kind == SSL_ERROR_SSL) return unavailable(TakeError());
    ERR_clear_error();
    return Unreachable(gateway_, number == 0 ? "it hung up" : strerror(number));
  }

  const Gateway gateway_;
  const std::shared_ptr<const TlsContext> context_;
  const std::string host_, authority_;
  const Socket socket_;
  const Session session_;
  bool open_ = false;
  bool shaken_ = false;  // the handshake is done
};

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsContext>> MakeTlsContext(const GatewayTls& tls) {
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return absl::InternalError(absl::StrCat("OpenSSL: ", TakeError()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context.get(), SSL_MODE_AUTO_RETRY);
  if (absl::Status s = Roots(tls.ca, context.get()); !s.ok()) return s;
  if (absl::Status s = OwnCertificate(tls, context.get()); !s.ok()) return s;
  return std::make_shared<const TlsContext>(std::move(context));
}

absl::StatusOr<std::unique_ptr<GatewayConnection>> OpenTls(const Gateway& gateway, Socket socket) {
  auto connection = std::make_unique<SecureConnection>(gateway, std::move(socket));
  if (absl::Status s = connection->Handshake(); !s.ok()) return s;
  return connection;
}

}  // namespace espalier
