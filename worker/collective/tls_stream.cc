#include "worker/collective/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "third_party/openssl/pem.h"

namespace espalier {
namespace {

using openssl::Certificate;
using openssl::Freer;
using openssl::PrivateKey;
using TlsConnection = std::unique_ptr<SSL, Freer<SSL, SSL_free>>;

// Several records are read, and written, by one system call.
constexpr size_t kTlsReadAhead = 256 << 10;
constexpr int64_t kWriteAhead = 128 << 10;
constexpr char kCiphers[] = "TLS_AES_128_GCM_SHA256";
constexpr int kX509Version3 = 2;
constexpr long kDay = 24 * 60 * 60;

std::string OpensslError(const char* otherwise) {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? otherwise : reason;
}

absl::Status Failed(const char* what) {
  return absl::InternalError(
      absl::StrCat("cannot make ", what, " for an attempt's tensors: ", OpensslError("no reason")));
}

std::string FingerprintOf(X509* certificate) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  if (certificate == nullptr || X509_digest(certificate, EVP_sha256(), digest, &length) != 1) {
    return "";
  }
  return absl::BytesToHexString(std::string(reinterpret_cast<const char*>(digest), length));
}

absl::StatusOr<Certificate> SelfSigned(EVP_PKEY* key) {
  Certificate made(X509_new());
  X509* it = made.get();
  // Ends look at the fingerprint only; the rest is what the format demands.
  if (it == nullptr || X509_set_version(it, kX509Version3) != 1 ||
      ASN1_INTEGER_set(X509_get_serialNumber(it), 1) != 1 ||
      X509_gmtime_adj(X509_getm_notBefore(it), -kDay) == nullptr ||
      X509_gmtime_adj(X509_getm_notAfter(it), 3650 * kDay) == nullptr ||
      X509_NAME_add_entry_by_txt(X509_get_subject_name(it), "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>("espalier rank"), -1, -1,
                                 0) != 1 ||
      X509_set_issuer_name(it, X509_get_subject_name(it)) != 1 || X509_set_pubkey(it, key) != 1 ||
      X509_sign(it, key, EVP_sha256()) == 0) {
    return Failed("a certificate");
  }
  return made;
}

// A stream's socket as OpenSSL's source and sink. OpenSSL's own would raise SIGPIPE, and calls the
// system for each record.
class RecordSocket {
 public:
  explicit RecordSocket(int fd) : fd_(fd) {}

  // Keeps what is written from now on, for Flush.
  void Collect() { collects_ = true; }
  // Returns false, with errno, while the socket takes no more.
  bool Flush() {
    while (flushed_ < records_.size()) {
      const ssize_t sent = SendSome(records_.data() + flushed_, records_.size() - flushed_);
      if (sent < 0) return false;
      flushed_ += static_cast<size_t>(sent);
    }
    records_.clear();
    flushed_ = 0;
    return true;
  }

  static int Write(BIO* bio, const char* data, int bytes) {
    auto* self = static_cast<RecordSocket*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (self->collects_) {
      self->records_.insert(self->records_.end(), data, data + bytes);
      return bytes;
    }
    const ssize_t sent = self->SendSome(data, static_cast<size_t>(bytes));
    if (sent < 0 && MayPass(errno)) BIO_set_retry_write(bio);
    return static_cast<int>(sent);
  }
  static int Read(BIO* bio, char* data, int bytes) {
    auto* self = static_cast<RecordSocket*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    const ssize_t got = recv(self->fd_, data, static_cast<size_t>(bytes), MSG_DONTWAIT);
    if (got < 0 && MayPass(errno)) BIO_set_retry_read(bio);
    return static_cast<int>(got);
  }
  static long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }
  static bool MayPass(int error) {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
  }

 private:
  ssize_t SendSome(const char* data, size_t bytes) const {
    return send(fd_, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  const int fd_;
  bool collects_ = false;
  std::vector<char> records_;
  size_t flushed_ = 0;
};

using Method = std::unique_ptr<BIO_METHOD, Freer<BIO_METHOD, BIO_meth_free>>;

Method SocketMethod() {
  Method made(BIO_meth_new(BIO_TYPE_SOURCE_SINK, "a rank's socket"));
  if (made != nullptr && (BIO_meth_set_write(made.get(), RecordSocket::Write) != 1 ||
                          BIO_meth_set_read(made.get(), RecordSocket::Read) != 1 ||
                          BIO_meth_set_ctrl(made.get(), RecordSocket::Control) != 1)) {
    made.reset();
  }
  return made;
}

}  // namespace

struct TlsIdentity::Context {
  std::unique_ptr<SSL_CTX, Freer<SSL_CTX, SSL_CTX_free>> ssl;
  Method socket_method;
  int64_t records_per_key = 0;
};

namespace {

class TlsStream : public ByteStream {
 public:
  TlsStream(Descriptor socket, std::shared_ptr<const void> keep, SSL_CTX* context,
            BIO_METHOD* method, std::set<std::string> expected, int64_t records_per_key,
            bool connects)
      : ByteStream(std::move(socket)),
        keep_(std::move(keep)),
        expected_(std::move(expected)),
        records_per_key_(records_per_key),
        socket_(ByteStream::socket()),
        ssl_(SSL_new(context)) {
    BIO* bio = ssl_ == nullptr ? nullptr : BIO_new(method);
    if (bio == nullptr) {
      ssl_.reset();
      return;
    }
    BIO_set_data(bio, &socket_);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl_.get(), bio, bio);
    SSL_set_app_data(ssl_.get(), this);
    if (connects) {
      SSL_set_connect_state(ssl_.get());
    } else {
      SSL_set_accept_state(ssl_.get());
    }
  }

  // Takes the place of OpenSSL's check of a chain. OpenSSL itself checks that the other end has the
  // certificate's key.
  static int Verify(X509_STORE_CTX* store, void*) {
    auto* ssl =
        static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
    auto* stream = static_cast<TlsStream*>(SSL_get_app_data(ssl));
    const bool is_expected =
        stream->expected_.count(FingerprintOf(X509_STORE_CTX_get0_cert(store))) > 0;
    if (is_expected) return 1;
    stream->is_stranger_ = true;
    X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
    return 0;
  }

  absl::StatusOr<short> Handshake() override {
    if (ssl_ == nullptr) return Failed("a connection");
    ForgetErrors();
    const int done = SSL_do_handshake(ssl_.get());
    if (done == 1) {
      socket_.Collect();
      return short{0};
    }
    switch (SSL_get_error(ssl_.get(), done)) {
      case SSL_ERROR_WANT_READ:
        return short{POLLIN};
      case SSL_ERROR_WANT_WRITE:
        return short{POLLOUT};
      default:
        return Broken(done);
    }
  }

  // Encrypts some records, and says that their bytes are written once the socket has taken all.
  absl::StatusOr<int64_t> Write(const char* data, int64_t bytes) override {
    ForgetErrors();
    const int64_t most = std::min(bytes, kWriteAhead);
    while (encrypted_ < most) {
      if (records_ >= records_per_key_) {
        if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return Broken(0);
        records_ = 0;
      }
      size_t written = 0;
      const int done = SSL_write_ex(ssl_.get(), data + encrypted_,
                                    static_cast<size_t>(most - encrypted_), &written);
      if (done != 1) return Broken(done);
      ++records_;
      encrypted_ += static_cast<int64_t>(written);
    }
    if (!socket_.Flush()) {
      if (RecordSocket::MayPass(errno)) return 0;
      return SocketError(errno);
    }
    return std::exchange(encrypted_, 0);
  }

  absl::StatusOr<int64_t> Read(char* data, int64_t bytes) override {
    ForgetErrors();
    size_t got = 0;
    const int done = SSL_read_ex(ssl_.get(), data, static_cast<size_t>(bytes), &got);
    if (done == 1) return static_cast<int64_t>(got);
    if (SSL_get_error(ssl_.get(), done) == SSL_ERROR_WANT_READ) return 0;
    return Broken(done);
  }

  std::string peer_fingerprint() const override {
    const Certificate shown(SSL_get1_peer_certificate(ssl_.get()));
    return FingerprintOf(shown.get());
  }

 private:
  static void ForgetErrors() {
    ERR_clear_error();
    errno = 0;
  }

  absl::Status Broken(int done) {
    const int error = errno;
    const int kind = SSL_get_error(ssl_.get(), done);
    if (is_stranger_) {
      ERR_clear_error();
      return absl::UnauthenticatedError(
          "the peer shows another certificate than the rank has published");
    }
    if (kind == SSL_ERROR_SYSCALL) {
      ERR_clear_error();
      return SocketError(error);
    }
    return absl::UnavailableError(OpensslError("TLS has failed"));
  }

  const std::shared_ptr<const void> keep_;  // context and method
  const std::set<std::string> expected_;
  const int64_t records_per_key_;
  RecordSocket socket_;
  TlsConnection ssl_;
  bool is_stranger_ = false;
  int64_t encrypted_ = 0;  // bytes that the caller offers and socket_ keeps as records
  int64_t records_ = 0;    // of the present key
};

}  // namespace

absl::StatusOr<std::unique_ptr<TlsIdentity>> TlsIdentity::Make(int64_t records_per_key) {
  const PrivateKey key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("a key");
  absl::StatusOr<Certificate> certificate = SelfSigned(key.get());
  if (!certificate.ok()) return certificate.status();
  auto context = std::make_shared<Context>();
  context->records_per_key = records_per_key;
  context->socket_method = SocketMethod();
  context->ssl.reset(SSL_CTX_new(TLS_method()));
  SSL_CTX* ssl = context->ssl.get();
  if (ssl == nullptr || context->socket_method == nullptr ||
      SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(ssl, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(ssl, kCiphers) != 1 || SSL_CTX_set_num_tickets(ssl, 0) != 1 ||
      SSL_CTX_use_certificate(ssl, certificate->get()) != 1 ||
      SSL_CTX_use_PrivateKey(ssl, key.get()) != 1) {
    return Failed("a context");
  }
  SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(ssl, 1);
  SSL_CTX_set_default_read_buffer_len(ssl, kTlsReadAhead);
  SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_cert_verify_callback(ssl, TlsStream::Verify, nullptr);
  return std::unique_ptr<TlsIdentity>(
      new TlsIdentity(std::move(context), FingerprintOf(certificate->get())));
}

TlsIdentity::~TlsIdentity() = default;

std::unique_ptr<ByteStream> TlsIdentity::Connect(Descriptor socket,
                                                 std::set<std::string> expected) const {
  return std::make_unique<TlsStream>(std::move(socket), context_, context_->ssl.get(),
                                     context_->socket_method.get(), std::move(expected),
                                     context_->records_per_key, /*connects=*/true);
}

std::unique_ptr<ByteStream> TlsIdentity::Accept(Descriptor socket,
                                                std::set<std::string> expected) const {
  return std::make_unique<TlsStream>(std::move(socket), context_, context_->ssl.get(),
                                     context_->socket_method.get(), std::move(expected),
                                     context_->records_per_key, /*connects=*/false);
}

}  // namespace espalier
