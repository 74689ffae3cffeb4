// Accepts connections and passes their requests to the handler.
#include "server/http/http_server.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/http/handler_pool.h"
#include "server/http/http_connection.h"
#include "server/http/response_stream.h"

namespace espalier {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using boost::system::error_code;

class Server : public HttpServer, public ConnectionHost {
 public:
  Server(HttpServerOptions options, HttpHandler handler)
      : options_(std::move(options)),
        handler_(std::move(handler)),
        overloaded_(options_.overloaded ? options_.overloaded : &RejectOverloaded),
        acceptor_(asio::make_strand(context_)) {}
  ~Server() override { Stop(); }

  absl::Status Listen() {
    if (!options_.certificates.certificate.empty()) {
      auto tls = MakeTls(options_.certificates);
      if (!tls.ok()) return tls.status();
      absl::MutexLock lock(&mutex_);
      tls_ = *std::move(tls);
    }
    error_code error;
    const asio::ip::address address = asio::ip::make_address(options_.address, error);
    const auto fail = [&] {
      return absl::UnavailableError(absl::StrCat("cannot listen for HTTP on ", options_.address,
                                                 ":", options_.port, ": ", error.message()));
    };
    if (error) return fail();
    const tcp::endpoint endpoint(address, options_.port);
    if (acceptor_.open(endpoint.protocol(), error); error) return fail();
    acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (acceptor_.bind(endpoint, error); error) return fail();
    if (acceptor_.listen(asio::socket_base::max_listen_connections, error); error) return fail();
    port_ = acceptor_.local_endpoint(error).port();
    handlers_.emplace(options_.handler_threads, options_.max_waiting_requests,
                      std::max(options_.max_waiting_bytes, options_.max_body_bytes));
    {
      absl::MutexLock lock(&mutex_);
      accepting_ = true;
    }
    asio::co_spawn(acceptor_.get_executor(), Accept(), [this](std::exception_ptr) {
      // Closes the socket now: Stop relies on nothing running afterwards.
      error_code ignored;
      acceptor_.close(ignored);
      absl::MutexLock lock(&mutex_);
      accepting_ = false;
    });
    for (int i = 0; i < options_.threads; ++i) {
      threads_.emplace_back([this] { context_.run(); });
    }
    return absl::OkStatus();
  }

  uint16_t port() const override { return port_; }
  int OpenRequests() const override { return *open_; }

  absl::Status SetCertificates(const HttpCertificates& certificates) override {
    auto tls = MakeTls(certificates);
    if (!tls.ok()) return tls.status();
    absl::MutexLock lock(&mutex_);
    if (tls_ == nullptr) {
      return absl::InvalidArgumentError("the HTTP server was started without certificates");
    }
    tls_ = *std::move(tls);
    return absl::OkStatus();
  }

  void Stop() override {
    if (stopped_.exchange(true)) return;
    asio::post(acceptor_.get_executor(), [this] {
      error_code ignored;
      acceptor_.close(ignored);
    });
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& connection : connections_) connection->Stop();
    }
    // Coroutines end by themselves once their sockets are closed. An answer that never comes is
    // abandoned after kStopTimeout.
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(this, &Server::IsIdle), kStopTimeout);
    }
    if (handlers_.has_value()) handlers_->Stop();
    context_.stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  static constexpr absl::Duration kStopTimeout = absl::Seconds(1);

  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !accepting_ && connections_.empty();
  }

  void Dispatch(HttpRequest request, const std::shared_ptr<ResponseStream>& response) override {
    response->CountTowards(open_, unsent_);
    if (options_.quick && options_.quick(request)) {
      Call(handler_, std::move(request), response);
      return;
    }
    auto kept = std::make_shared<HttpRequest>(std::move(request));
    const bool added = handlers_->Add(kept->body.size(), [this, kept, response] {
      if (response->closed()) return;
      const bool room = *unsent_ <= options_.max_all_unsent_bytes;
      Call(room ? handler_ : overloaded_, std::move(*kept), response);
    });
    if (!added) Call(overloaded_, std::move(*kept), response);
  }

  std::optional<ResponseStream::Part> RejectByHeader(const HttpRequest& header) override {
    std::optional<ResponseStream::Part> refusal;
    if (options_.admit == nullptr) return refusal;
    bool admitted = false;
    ResponseStream::Part part = CallInline(
        [&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
          admitted = options_.admit(request, responder);
        },
        header);
    if (!admitted) refusal = std::move(part);
    return refusal;
  }
  ResponseStream::Part OverloadedPart(const HttpRequest& header) override {
    return CallInline(overloaded_, header);
  }
  bool ReserveBodyBytes(size_t bytes) override {
    const size_t most = std::max(options_.max_reading_bytes, options_.max_body_bytes);
    if ((body_bytes_ += bytes) <= most) return true;
    body_bytes_ -= bytes;
    return false;
  }
  void ReleaseBodyBytes(size_t bytes) override { body_bytes_ -= bytes; }
  void OnRejected(const std::string& method, int status, absl::Duration after) override {
    if (options_.on_rejected) options_.on_rejected(method, status, after);
  }

  // Returns the answer of a handler that answers before it returns.
  static ResponseStream::Part CallInline(const HttpHandler& handler, HttpRequest request) {
    const auto response = std::make_shared<ResponseStream>(0, [] {});
    Call(handler, std::move(request), response);
    ResponseStream::Part part{ResponseStream::Part::kComplete, 500, "application/json", "", {}};
    response->Pop(&part);
    return part;
  }

  // An exception thrown by a handler's library ends only its request: with a 500, if there is no
  // answer yet.
  static void Call(const HttpHandler& handler, HttpRequest request,
                   const std::shared_ptr<ResponseStream>& response) {
    const std::string name = absl::StrCat(request.method, " ", request.path.substr(0, 200));
    try {
      handler(std::move(request), std::make_shared<StreamResponder>(response));
    } catch (const std::exception& exception) {
      spdlog::error("HTTP: {} has failed: {}", name, exception.what());
    }
  }

  static void RejectOverloaded(HttpRequest, const std::shared_ptr<HttpResponder>& responder) {
    responder->Send(
        503, "application/json",
        R"({"error":{"message":"the server is overloaded: too many requests or bytes are queued; try again later",)"
        R"("type":"server_error","param":null,"code":null}})",
        {{"Retry-After", "1"}});
  }

  std::shared_ptr<asio::ssl::context> Tls() {
    absl::MutexLock lock(&mutex_);
    return tls_;
  }

  asio::awaitable<void> Accept() {
    while (!stopped_) {
      error_code error;
      tcp::socket socket = co_await acceptor_.async_accept(
          asio::make_strand(context_), asio::redirect_error(asio::use_awaitable, error));
      if (error == asio::error::operation_aborted || stopped_) co_return;
      if (error) {  // out of file descriptors: retry later
        asio::steady_timer pause(co_await asio::this_coro::executor, std::chrono::milliseconds(20));
        error_code ignored;
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
        continue;
      }
      if (const std::shared_ptr<asio::ssl::context> tls = Tls()) {
        Spawn(MakeTlsTransport(std::move(socket), *tls));
      } else {
        Spawn(MakeTcpTransport(std::move(socket)));
      }
    }
  }

  void Spawn(std::unique_ptr<HttpTransport> transport) {
    const auto connection = std::make_shared<Connection>(std::move(transport), options_, *this);
    {
      absl::MutexLock lock(&mutex_);
      // Stop may have run already.
      if (stopped_ || connections_.size() >= options_.max_connections) return;
      connections_.insert(connection);
    }
    asio::co_spawn(
        connection->executor(),
        [connection]() -> asio::awaitable<void> { co_await connection->Run(); },
        [this, connection](std::exception_ptr) {
          absl::MutexLock lock(&mutex_);
          connections_.erase(connection);
        });
  }

  static absl::StatusOr<std::shared_ptr<asio::ssl::context>> MakeTls(const HttpCertificates& pem) {
    auto tls = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
    error_code error;
    tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                         asio::ssl::context::no_tlsv1_1,
                     error);
    if (!error) tls->use_certificate_chain(asio::buffer(pem.certificate), error);
    if (!error) tls->use_private_key(asio::buffer(pem.key), asio::ssl::context::pem, error);
    if (!error && !pem.client_ca.empty()) {
      tls->add_certificate_authority(asio::buffer(pem.client_ca), error);
      tls->set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
      // Without a session ID context, a client that resumes a session is rejected.
      constexpr unsigned char kSessions[] = "espalierd";
      SSL_CTX_set_session_id_context(tls->native_handle(), kSessions, sizeof(kSessions) - 1);
    }
    if (!error) return tls;
    return absl::InvalidArgumentError(
        absl::StrCat("the HTTP server's certificate or key: ", error.message()));
  }

  const HttpServerOptions options_;
  const HttpHandler handler_;
  const HttpHandler overloaded_;
  std::atomic<size_t> body_bytes_ = 0;  // of bodies that are still being read
  // Bytes of answers. Shared, since a responder may outlive the server.
  const std::shared_ptr<std::atomic<size_t>> unsent_ = std::make_shared<std::atomic<size_t>>(0);
  std::optional<HandlerPool> handlers_;  // set by Listen
  asio::io_context context_;
  tcp::acceptor acceptor_;  // on a strand, since Stop closes it from another thread
  uint16_t port_ = 0;
  std::atomic<bool> stopped_ = false;
  const std::shared_ptr<std::atomic<int>> open_ = std::make_shared<std::atomic<int>>(0);
  std::vector<std::thread> threads_;
  absl::Mutex mutex_;
  std::shared_ptr<asio::ssl::context> tls_ ABSL_GUARDED_BY(mutex_);  // null: no TLS
  std::set<std::shared_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
  bool accepting_ ABSL_GUARDED_BY(mutex_) = false;  // until the listening socket is closed
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options,
                                                              HttpHandler handler) {
  auto server = std::make_unique<Server>(std::move(options), std::move(handler));
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  return server;
}

}  // namespace espalier
