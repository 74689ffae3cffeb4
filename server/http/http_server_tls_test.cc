// Connections over TLS, where reads and writes share one state.
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <csignal>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/http_server.h"
#include "server/http/testing/flooding_handler.h"
#include "server/http/testing/raw_client.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kSoon = absl::Seconds(10);

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* it) const {
    Free(it);
  }
};
template <typename T, auto Free>
using Owned = std::unique_ptr<T, Freed<Free>>;

std::string Text(BIO* bio) {
  char* data = nullptr;
  const int64_t size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

// Returns a self-signed certificate, valid for an hour.
HttpCertificates MakeCertificates() {
  Owned<EVP_PKEY, EVP_PKEY_free> key(EVP_EC_gen("P-256"));
  Owned<X509, X509_free> x509(X509_new());
  ASN1_INTEGER_set(X509_get_serialNumber(x509.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(x509.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(x509.get()), 3600);
  X509_set_pubkey(x509.get(), key.get());
  X509_NAME* name = X509_get_subject_name(x509.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(x509.get(), name);
  EXPECT_GT(X509_sign(x509.get(), key.get(), EVP_sha256()), 0);
  Owned<BIO, BIO_free> key_pem(BIO_new(BIO_s_mem())), pem(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(key_pem.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  PEM_write_bio_X509(pem.get(), x509.get());
  return {.certificate = Text(pem.get()), .key = Text(key_pem.get())};
}

class TlsClient {
 public:
  explicit TlsClient(uint16_t port, int receive_buffer = 0) : raw_(port, receive_buffer) {
    signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
    SSL_set_fd(tls_.get(), raw_.fd());
    EXPECT_EQ(SSL_connect(tls_.get()), 1);
  }
  void Send(absl::string_view data) {
    EXPECT_EQ(SSL_write(tls_.get(), data.data(), static_cast<int>(data.size())),
              static_cast<int>(data.size()));
  }
  // Returns "" at the end.
  std::string Read() {
    char data[1 << 14];
    const int n = SSL_read(tls_.get(), data, sizeof data);
    return n > 0 ? std::string(data, static_cast<size_t>(n)) : "";
  }
  std::string ReadUntil(absl::string_view end) {
    std::string all;
    while (!absl::StrContains(all, end)) {
      const std::string some = Read();
      if (some.empty()) break;
      all += some;
    }
    return all;
  }
  // With or without TLS's close_notify.
  void Close(bool politely) {
    if (politely) SSL_shutdown(tls_.get());
    raw_.Close();
  }

 private:
  RawClient raw_;
  Owned<SSL_CTX, SSL_CTX_free> context_{SSL_CTX_new(TLS_client_method())};
  Owned<SSL, SSL_free> tls_{SSL_new(context_.get())};
};

std::unique_ptr<HttpServer> StartServer(HttpHandler handler, HttpServerOptions options = {}) {
  options.certificates = MakeCertificates();
  auto server = HttpServer::Start(options, std::move(handler));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(HttpServerTls, DisconnectIsSeenBehindPipelinedBytes) {
  const std::string next = "GET /2 HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string large =
      "POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n" + std::string(90000, 'x');
  for (const std::string& ahead : {std::string(), std::string("x"), next, large}) {
    for (const bool politely : {true, false}) {
      SCOPED_TRACE(absl::StrCat(ahead.size(), " bytes ahead", politely ? ", politely" : ""));
      absl::Notification begun, closed;
      std::shared_ptr<HttpResponder> kept;
      auto server = StartServer([&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
        responder->OnClose([&] { closed.Notify(); });
        kept = std::move(responder);
        begun.Notify();
      });
      TlsClient client(server->port());
      client.Send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n");
      ASSERT_TRUE(begun.WaitForNotificationWithTimeout(kSoon));
      if (!ahead.empty()) client.Send(ahead);
      absl::SleepFor(absl::Milliseconds(50));
      EXPECT_FALSE(closed.HasBeenNotified());
      client.Close(politely);
      EXPECT_TRUE(closed.WaitForNotificationWithTimeout(kSoon));
      server->Stop();
    }
  }
}

TEST(HttpServerTls, PipelinedRequestsWaitForEarlierAnswers) {
  auto server = StartServer([](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    std::thread([request = std::move(request), responder = std::move(responder)] {
      absl::SleepFor(absl::Milliseconds(20));
      responder->StartStream(200, "text/plain");
      for (int i = 0; i < 20; ++i) responder->Write(std::string(1000, '.'));
      responder->Write(absl::StrCat("[", request.path, " ", request.body.size(), "]"));
      responder->End();
    }).detach();
  });
  TlsClient client(server->port());
  const std::string body(300'000, 'b');
  client.Send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n");
  client.Send(absl::StrCat("POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(),
                           "\r\n\r\n", body));
  client.Send("GET /3 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("[/1 0]"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(client.ReadUntil("[/2 300000]"), HasSubstr("[/2 300000]"));
  EXPECT_THAT(client.ReadUntil("[/3 0]"), HasSubstr("[/3 0]"));
}

// Each write happens during a read; the write timeout must not apply to the read.
TEST(HttpServerTls, StreamMayPauseForLongerThanAWriteMay) {
  HttpServerOptions options;
  options.write_timeout = absl::Milliseconds(100);
  auto server = StartServer(
      [](HttpRequest, std::shared_ptr<HttpResponder> responder) {
        responder->StartStream(200, "text/event-stream");
        std::thread([responder = std::move(responder)] {
          for (int i = 0; i < 4; ++i) {
            responder->Write(absl::StrCat("data: ", i, "\n\n"));
            absl::SleepFor(absl::Milliseconds(200));
          }
          responder->End();
        }).detach();
      },
      options);
  TlsClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("\r\n0\r\n\r\n"), HasSubstr("data: 3"));
}

// As proxies with a client certificate do.
TEST(HttpServerTls, AClientWithACertificateMayTakeUpItsSession) {
  HttpServerOptions options;
  options.certificates = MakeCertificates();
  options.certificates.client_ca = options.certificates.certificate;
  auto server =
      HttpServer::Start(options, [](HttpRequest, std::shared_ptr<HttpResponder> responder) {
        responder->Send(200, "text/plain", "welcome");
      });
  ASSERT_TRUE(server.ok()) << server.status();
  signal(SIGPIPE, SIG_IGN);
  Owned<SSL_CTX, SSL_CTX_free> context(SSL_CTX_new(TLS_client_method()));
  const auto pem = [](const std::string& text) {
    return Owned<BIO, BIO_free>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  };
  Owned<X509, X509_free> certificate(
      PEM_read_bio_X509(pem(options.certificates.certificate).get(), nullptr, nullptr, nullptr));
  Owned<EVP_PKEY, EVP_PKEY_free> key(
      PEM_read_bio_PrivateKey(pem(options.certificates.key).get(), nullptr, nullptr, nullptr));
  ASSERT_EQ(SSL_CTX_use_certificate(context.get(), certificate.get()), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(context.get(), key.get()), 1);
  Owned<SSL_SESSION, SSL_SESSION_free> session;
  for (const bool resumes : {false, true}) {
    RawClient raw((*server)->port());
    Owned<SSL, SSL_free> tls(SSL_new(context.get()));
    SSL_set_fd(tls.get(), raw.fd());
    if (resumes) {
      ASSERT_EQ(SSL_set_session(tls.get(), session.get()), 1);
    }
    ASSERT_EQ(SSL_connect(tls.get()), 1);
    const std::string request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    ASSERT_GT(SSL_write(tls.get(), request.data(), static_cast<int>(request.size())), 0);
    std::string answer;
    char data[1 << 12];
    for (int n; (n = SSL_read(tls.get(), data, sizeof data)) > 0;) {
      answer.append(data, static_cast<size_t>(n));
    }
    EXPECT_THAT(answer, HasSubstr("welcome"));
    EXPECT_EQ(SSL_session_reused(tls.get()), resumes ? 1 : 0);
    session.reset(SSL_get1_session(tls.get()));
    SSL_shutdown(tls.get());
  }
}

TEST(HttpServerTls, LargeWholeAnswerIsSent) {
  constexpr size_t kSize = 20 << 20;
  auto server = StartServer([](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->Send(200, "text/plain", absl::StrCat(std::string(kSize, 'x'), "end"));
  });
  TlsClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string all = client.ReadUntil("end");
  EXPECT_EQ(all.size() - all.find("\r\n\r\n") - 4, kSize + 3);
}

TEST(HttpServerTls, UnreadStreamIsClosedDuringABlockedWrite) {
  HttpServerOptions options;
  options.max_unsent_bytes = 1 << 20;
  options.write_timeout = absl::Hours(1);
  FloodingHandler flood;
  auto server = StartServer(flood.Handler(kSoon), options);
  TlsClient client(server->port(), /*receive_buffer=*/64 << 10);
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(flood.WaitUntilClosed(kSoon));
}

TEST(HttpServerTls, RefusalsAreHeard) {
  HttpServerOptions options;
  options.read_timeout = absl::Milliseconds(300);
  options.max_body_bytes = 1000;
  auto server = StartServer(
      [](HttpRequest, std::shared_ptr<HttpResponder> responder) {
        responder->Send(200, "text/plain", "");
      },
      options);
  const struct {
    std::string request, answer;
  } cases[] = {
      {"GET / HT", "HTTP/1.1 408 "},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc", "HTTP/1.1 408 "},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + std::string(100000, 'b'),
       "HTTP/1.1 413 "},
      {"nonsense\r\n\r\n", "HTTP/1.1 400 "},
  };
  for (const auto& test : cases) {
    TlsClient client(server->port());
    client.Send(test.request);
    EXPECT_THAT(client.ReadUntil("}}"), StartsWith(test.answer)) << test.request.substr(0, 60);
  }
}

}  // namespace
}  // namespace espalier
