// The only translation unit that includes Boost.Beast: it takes long to compile.
#include "server/http/http_server.h"

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <deque>
#include <exception>
#include <set>
#include <thread>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace espalier {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using Plain = beast::tcp_stream;
using Secure = beast::ssl_stream<beast::tcp_stream>;
using boost::system::error_code;

std::chrono::nanoseconds Chrono(absl::Duration d) { return absl::ToChronoNanoseconds(d); }

// One request's answer on its way from whoever answers to the connection. The connection's strand
// takes parts out; any thread puts them in. May outlive connection and server: it holds nothing of
// theirs but `wake`, which is dropped when it closes.
class Exchange {
 public:
  struct Part {
    enum Kind { kWhole, kHeader, kChunk, kEnd } kind;
    int status = 200;
    std::string content_type;
    std::string data;
    HttpResponder::Headers headers;
  };

  // `wake` tells the connection, from any thread and without blocking, that there is something new.
  Exchange(size_t max_unsent, std::function<void()> wake)
      : max_unsent_(max_unsent), wake_(std::move(wake)) {}

  void Put(Part part) {
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) return;
      unsent_ += part.data.size();
      parts_.push_back(std::move(part));
      overflow_ = unsent_ > max_unsent_;
      wake_();
    }
  }

  bool Started() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(started_, true);
  }

  void OnClose(std::function<void()> closed) {
    {
      absl::MutexLock lock(&mutex_);
      if (!closed_) {
        on_close_ = std::move(closed);
        return;
      }
      if (!gone_) return;
    }
    closed();
  }

  // The rest run on the strand.

  bool Take(Part* part) {
    absl::MutexLock lock(&mutex_);
    if (parts_.empty()) return false;
    *part = std::move(parts_.front());
    parts_.pop_front();
    unsent_ -= part->data.size();
    return true;
  }

  bool overflow() {
    absl::MutexLock lock(&mutex_);
    return overflow_;
  }

  bool closed() {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }

  // The client has gone, or the answer is complete (`notify` false).
  void Close(bool notify, bool wake = true) {
    std::function<void()> closed;
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) return;
      closed_ = true;
      gone_ = notify;
      parts_.clear();
      closed = std::move(on_close_);
      on_close_ = nullptr;
      if (wake) wake_();
      wake_ = nullptr;
    }
    if (notify && closed) closed();
  }

 private:
  const size_t max_unsent_;
  absl::Mutex mutex_;
  std::deque<Part> parts_ ABSL_GUARDED_BY(mutex_);
  size_t unsent_ ABSL_GUARDED_BY(mutex_) = 0;
  bool overflow_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // no more parts are taken
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;    // closed before the answer was complete
  std::function<void()> on_close_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);  // null once closed
};

class Responder : public HttpResponder {
 public:
  explicit Responder(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  ~Responder() override {
    if (!exchange_->Started()) {
      exchange_->Put({Exchange::Part::kWhole,
                      500,
                      "application/json",
                      R"({"error":{"message":"the request was dropped","type":"server_error"}})",
                      {}});
    } else if (streaming_ && !ended_) {
      exchange_->Put({Exchange::Part::kEnd, 200, "", "", {}});
    }
  }

  void Send(int status, std::string content_type, std::string body, Headers headers) override {
    if (exchange_->Started()) return;
    exchange_->Put({Exchange::Part::kWhole, status, std::move(content_type), std::move(body),
                    std::move(headers)});
  }
  void StartStream(int status, std::string content_type, Headers headers) override {
    if (exchange_->Started()) return;
    streaming_ = true;
    exchange_->Put(
        {Exchange::Part::kHeader, status, std::move(content_type), "", std::move(headers)});
  }
  void Write(std::string data) override {
    if (!data.empty()) exchange_->Put({Exchange::Part::kChunk, 200, "", std::move(data), {}});
  }
  void End() override {
    if (!ended_.exchange(true)) exchange_->Put({Exchange::Part::kEnd, 200, "", "", {}});
  }
  void OnClose(std::function<void()> closed) override { exchange_->OnClose(std::move(closed)); }

 private:
  std::shared_ptr<Exchange> exchange_;
  std::atomic<bool> streaming_ = false;
  std::atomic<bool> ended_ = false;
};

class AnyConnection {
 public:
  virtual ~AnyConnection() = default;
  // From any thread.
  virtual void Stop() = 0;
};

template <typename Stream>
class Connection : public AnyConnection, public std::enable_shared_from_this<Connection<Stream>> {
 public:
  Connection(Stream stream, const HttpServerOptions& options, const HttpHandler& handler)
      : stream_(std::move(stream)),
        wake_(stream_.get_executor()),
        options_(options),
        handler_(handler) {
    wake_.expires_at(std::chrono::steady_clock::time_point::max());
    error_code error;
    const tcp::endpoint peer = socket().remote_endpoint(error);
    if (!error) peer_ = absl::StrCat(peer.address().to_string(), ":", peer.port());
    socket().set_option(tcp::no_delay(true), error);
  }

  ~Connection() override {
    if (exchange_) exchange_->Close(true, /*wake=*/false);
  }

  asio::awaitable<void> Run() {
    bool keep = true;
    if constexpr (kSecure) {
      error_code error;
      lowest().expires_after(Chrono(options_.read_timeout));
      co_await stream_.async_handshake(asio::ssl::stream_base::server,
                                       asio::redirect_error(asio::use_awaitable, error));
      keep = !error;
    }
    while (keep) {
      http::request_parser<http::string_body> parser;
      parser.header_limit(static_cast<uint32_t>(options_.max_header_bytes));
      parser.body_limit(options_.max_body_bytes);
      error_code error;
      if (buffer_.size() == 0) {
        lowest().expires_after(Chrono(options_.idle_timeout));
        co_await http::async_read_some(stream_, buffer_, parser,
                                       asio::redirect_error(asio::use_awaitable, error));
      }
      lowest().expires_after(Chrono(options_.read_timeout));
      if (!error && !parser.is_done()) {
        co_await http::async_read(stream_, buffer_, parser,
                                  asio::redirect_error(asio::use_awaitable, error));
      }
      if (error) {
        co_await AnswerBadRequest(error);
        break;
      }
      keep = co_await Answer(parser.release());
    }
    error_code ignored;
    if constexpr (kSecure) {
      lowest().expires_after(kGoodbye);
      co_await stream_.async_shutdown(asio::redirect_error(asio::use_awaitable, ignored));
    }
    socket().shutdown(tcp::socket::shutdown_both, ignored);
    lowest().close();
  }

  auto executor() { return stream_.get_executor(); }

  void Stop() override {
    asio::post(stream_.get_executor(), [self = this->shared_from_this()] {
      if (self->exchange_) self->exchange_->Close(true);
      self->lowest().close();
    });
  }

 private:
  using Message = http::response<http::string_body>;
  static constexpr bool kSecure = std::is_same_v<Stream, Secure>;
  static constexpr std::chrono::seconds kGoodbye{1};  // for TLS to end in good order
  static constexpr size_t kAhead = 4096;              // bytes read of the next request at a time

  beast::tcp_stream& lowest() { return beast::get_lowest_layer(stream_); }
  tcp::socket& socket() { return lowest().socket(); }

  static HttpRequest Translate(http::request<http::string_body>& request, const std::string& peer) {
    HttpRequest out;
    out.method = std::string(request.method_string());
    const std::string target(request.target());
    const size_t question = target.find('?');
    out.path = target.substr(0, question);
    if (question != std::string::npos) out.query = target.substr(question + 1);
    for (const auto& field : request) {
      std::string name(field.name_string());
      for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
      out.headers[name] = std::string(field.value());
    }
    out.body = std::move(request.body());
    out.peer = peer;
    return out;
  }

  asio::awaitable<void> AnswerBadRequest(const error_code& error) {
    int status = 0;
    if (error == http::error::body_limit) {
      status = 413;
    } else if (error == http::error::header_limit) {
      status = 431;
    } else if (error == beast::error::timeout || error == http::error::end_of_stream ||
               error.category() != make_error_code(http::error::bad_method).category()) {
      co_return;  // the client has gone or sleeps
    } else {
      status = 400;
    }
    Message message{static_cast<http::status>(status), 11};
    message.set(http::field::content_type, "application/json");
    message.body() = absl::StrCat(
        R"({"error":{"message":")",
        status == 413 ? absl::StrCat("the body is larger than ", options_.max_body_bytes, " bytes")
        : status == 431
            ? absl::StrCat("the headers are larger than ", options_.max_header_bytes, " bytes")
            : absl::StrCat("malformed HTTP request: ", error.message()),
        R"(","type":"invalid_request_error","param":null,"code":null}})");
    message.keep_alive(false);
    message.prepare_payload();
    error_code ignored;
    lowest().expires_after(Chrono(options_.write_timeout));
    co_await http::async_write(stream_, message,
                               asio::redirect_error(asio::use_awaitable, ignored));
  }

  // Notices that the client goes away while the answer is being made. Bytes are the next request,
  // sent early: they are read when this one is done.
  static asio::awaitable<void> Watch(std::shared_ptr<Connection> self,
                                     std::shared_ptr<Exchange> exchange) {
    error_code error;
    if constexpr (kSecure) {
      // What the socket holds may be the end of TLS itself: it has to be decrypted.
      const size_t n = co_await self->stream_.async_read_some(
          self->buffer_.prepare(kAhead), asio::redirect_error(asio::use_awaitable, error));
      self->buffer_.commit(n);
      self->watching_ = false;
      self->wake_.cancel();
      if (error && !exchange->closed()) exchange->Close(true);
    } else {
      co_await self->socket().async_wait(tcp::socket::wait_read,
                                         asio::redirect_error(asio::use_awaitable, error));
      if (error || exchange->closed()) co_return;
      char byte;
      self->socket().non_blocking(true, error);
      const size_t n =
          self->socket().receive(asio::buffer(&byte, 1), tcp::socket::message_peek, error);
      if (n > 0 || error == asio::error::would_block) co_return;
      exchange->Close(true);
    }
  }

  // False if the connection must be closed.
  asio::awaitable<bool> Answer(http::request<http::string_body> request) {
    const bool keep = request.keep_alive();
    const unsigned version = request.version();
    const bool head = request.method() == http::verb::head;
    auto exchange =
        std::make_shared<Exchange>(options_.max_unsent_bytes, [weak = this->weak_from_this()] {
          if (auto self = weak.lock()) {
            asio::post(self->stream_.get_executor(), [self] { self->wake_.cancel(); });
          }
        });
    exchange_ = exchange;
    lowest().expires_never();
    if (!kSecure || buffer_.size() == 0) {
      watching_ = kSecure;
      asio::co_spawn(stream_.get_executor(), Watch(this->shared_from_this(), exchange),
                     asio::detached);
    }
    handler_(Translate(request, peer_), std::make_shared<Responder>(exchange));
    bool good = true;
    for (bool done = false; good && !done;) {
      Exchange::Part part;
      if (exchange->closed() || exchange->overflow()) {
        good = false;
      } else if (exchange->Take(&part)) {
        lowest().expires_after(Chrono(options_.write_timeout));
        done = part.kind == Exchange::Part::kWhole || part.kind == Exchange::Part::kEnd;
        good = co_await WritePart(std::move(part), version, keep, head);
        lowest().expires_never();
      } else {
        error_code ignored;
        co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      }
    }
    exchange->Close(!good);
    exchange_.reset();
    error_code ignored;
    socket().cancel(ignored);  // the watcher
    while (watching_) co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    co_return good&& keep;
  }

  asio::awaitable<bool> WritePart(Exchange::Part part, unsigned version, bool keep, bool head) {
    error_code error;
    switch (part.kind) {
      case Exchange::Part::kWhole: {
        Message message{static_cast<http::status>(part.status), version};
        SetHeaders(part, keep, &message);
        message.body() = std::move(part.data);
        message.prepare_payload();
        if (head) message.body().clear();
        co_await http::async_write(stream_, message,
                                   asio::redirect_error(asio::use_awaitable, error));
        break;
      }
      case Exchange::Part::kHeader: {
        http::response<http::empty_body> message{static_cast<http::status>(part.status), version};
        SetHeaders(part, keep, &message);
        message.chunked(true);
        http::response_serializer<http::empty_body> serializer{message};
        co_await http::async_write_header(stream_, serializer,
                                          asio::redirect_error(asio::use_awaitable, error));
        break;
      }
      case Exchange::Part::kChunk:
        co_await asio::async_write(stream_, http::make_chunk(asio::buffer(part.data)),
                                   asio::redirect_error(asio::use_awaitable, error));
        break;
      case Exchange::Part::kEnd:
        co_await asio::async_write(stream_, http::make_chunk_last(),
                                   asio::redirect_error(asio::use_awaitable, error));
        break;
    }
    co_return !error;
  }

  template <typename AnyMessage>
  static void SetHeaders(const Exchange::Part& part, bool keep, AnyMessage* message) {
    message->set(http::field::server, "espalier");
    message->set(http::field::content_type, part.content_type);
    for (const auto& [name, value] : part.headers) message->set(name, value);
    message->keep_alive(keep);
  }

  Stream stream_;
  beast::flat_buffer buffer_;
  bool watching_ = false;  // a watcher reads from a secure stream, which nobody else may meanwhile
  asio::steady_timer wake_;  // never expires: cancelled to wake the coroutine that waits for parts
  const HttpServerOptions& options_;
  const HttpHandler& handler_;
  std::string peer_;
  std::shared_ptr<Exchange> exchange_;
};

class Server : public HttpServer {
 public:
  Server(HttpServerOptions options, HttpHandler handler)
      : options_(std::move(options)),
        handler_(std::move(handler)),
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
    asio::co_spawn(acceptor_.get_executor(), Accept(), asio::detached);
    for (int i = 0; i < options_.threads; ++i) {
      threads_.emplace_back([this] { context_.run(); });
    }
    return absl::OkStatus();
  }

  uint16_t port() const override { return port_; }

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
    // Coroutines end by themselves once their sockets are closed; a handler that never answers is
    // cut.
    for (int i = 0; i < 200; ++i) {
      {
        absl::MutexLock lock(&mutex_);
        if (connections_.empty()) break;
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
    context_.stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
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
      if (error) {  // out of file descriptors: wait for some to come back
        asio::steady_timer pause(co_await asio::this_coro::executor, std::chrono::milliseconds(20));
        error_code ignored;
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
        continue;
      }
      // OpenSSL counts the references of connections to what is in a context.
      if (const std::shared_ptr<asio::ssl::context> tls = Tls()) {
        Spawn(std::make_shared<Connection<Secure>>(Secure(std::move(socket), *tls), options_,
                                                   handler_));
      } else {
        Spawn(std::make_shared<Connection<Plain>>(Plain(std::move(socket)), options_, handler_));
      }
    }
  }

  template <typename Stream>
  void Spawn(std::shared_ptr<Connection<Stream>> connection) {
    {
      absl::MutexLock lock(&mutex_);
      if (connections_.size() >= options_.max_connections) return;
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
    }
    if (!error) return tls;
    return absl::InvalidArgumentError(
        absl::StrCat("the HTTP server's certificate or key: ", error.message()));
  }

  const HttpServerOptions options_;
  const HttpHandler handler_;
  asio::io_context context_;
  tcp::acceptor acceptor_;  // on a strand: it is closed from another thread
  uint16_t port_ = 0;
  std::atomic<bool> stopped_ = false;
  std::vector<std::thread> threads_;
  absl::Mutex mutex_;
  std::shared_ptr<asio::ssl::context> tls_ ABSL_GUARDED_BY(mutex_);  // null: in the clear
  std::set<std::shared_ptr<AnyConnection>> connections_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options,
                                                              HttpHandler handler) {
  auto server = std::make_unique<Server>(std::move(options), std::move(handler));
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  return server;
}

}  // namespace espalier
