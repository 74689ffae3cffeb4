// One connection of the HTTP server: reads requests one by one and writes their answers. Only
// http_server.cc includes this header, because Boost.Beast is slow to compile.
#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/http/http_message.h"
#include "server/http/http_server.h"
#include "server/http/response_stream.h"

namespace espalier {

// What a connection needs of its server. Called on the connection's strand; must not block.
class ConnectionHost {
 public:
  virtual ~ConnectionHost() = default;
  // Has the request answered through `response`.
  virtual void Dispatch(HttpRequest request, const std::shared_ptr<ResponseStream>& response) = 0;
  // Returns the answer if the header alone suffices to reject the request, so that its body is not
  // read; nullopt to read the body.
  virtual std::optional<ResponseStream::Part> RejectByHeader(const HttpRequest& header) = 0;
  // Returns the answer for a request whose body exceeds the server's budget.
  virtual ResponseStream::Part OverloadedPart(const HttpRequest& header) = 0;
  // Reserves bytes of the server's budget for bodies being read. Returns false and reserves nothing
  // if all connections together would exceed it.
  virtual bool ReserveBodyBytes(size_t bytes) = 0;
  virtual void ReleaseBodyBytes(size_t bytes) = 0;
  // Reports a rejected request `after` its first byte; `method` may be empty.
  virtual void OnRejected(const std::string& method, int status, absl::Duration after) = 0;
};

class ConnectionBase {
 public:
  virtual ~ConnectionBase() = default;
  // Thread-safe.
  virtual void Stop() = 0;
};

// `Stream` is a beast::tcp_stream or a beast::ssl_stream of one, whose executor is a strand. All
// methods but Stop run on the strand. `options` and `host` must outlive the connection.
template <typename Stream>
class Connection : public ConnectionBase, public std::enable_shared_from_this<Connection<Stream>> {
  template <typename T = void>
  using Awaitable = boost::asio::awaitable<T>;
  using Error = boost::system::error_code;

 public:
  Connection(Stream stream, const HttpServerOptions& options, ConnectionHost& host)
      : stream_(std::move(stream)),
        buffer_(2 * options.max_header_bytes + kMaxPipelinedBytes),
        wake_(stream_.get_executor()),
        deadline_(stream_.get_executor()),
        hang_up_timer_(stream_.get_executor()),
        options_(options),
        host_(host) {
    wake_.expires_at(std::chrono::steady_clock::time_point::max());
    Error error;
    const boost::asio::ip::tcp::endpoint peer = socket().remote_endpoint(error);
    if (!error) peer_ = absl::StrCat(peer.address().to_string(), ":", peer.port());
    socket().set_option(boost::asio::ip::tcp::no_delay(true), error);
  }

  ~Connection() override {
    host_.ReleaseBodyBytes(reserved_bytes_);
    if (response_) response_->Close(true, /*wake=*/false);
  }

  Awaitable<> Run() {
    bool keep = true;
    if constexpr (kSecure) {
      Error error;
      lowest().expires_after(Chrono(options_.read_timeout));
      co_await stream_.async_handshake(boost::asio::ssl::stream_base::server, Into(error));
      keep = !error;
    }
    while (keep) keep = co_await ServeOne();
    Error ignored;
    if constexpr (kSecure) {
      lowest().expires_after(kCloseTimeout);
      co_await stream_.async_shutdown(Into(ignored));
    }
    if (rejected_) co_await Drain();
    socket().shutdown(boost::asio::socket_base::shutdown_both, ignored);
    lowest().close();
  }

  auto executor() { return stream_.get_executor(); }

  void Stop() override {
    boost::asio::post(stream_.get_executor(), [self = this->shared_from_this()] {
      if (self->response_) self->response_->Close(true);
      self->lowest().close();
    });
  }

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  static constexpr bool kSecure = !std::is_same_v<Stream, boost::beast::tcp_stream>;
  static constexpr std::chrono::seconds kCloseTimeout{1};        // for an orderly close
  static constexpr std::chrono::seconds kHangUpPollInterval{1};  // while input is paused
  static constexpr size_t kReadBytes = 4096;
  static constexpr size_t kMaxPipelinedBytes = 64 << 10;  // read ahead of later requests
  static constexpr size_t kWriteSliceBytes = 256 << 10;   // written per write_timeout

  static std::chrono::nanoseconds Chrono(absl::Duration d) { return absl::ToChronoNanoseconds(d); }

  static auto Into(Error& error) {
    return boost::asio::redirect_error(boost::asio::use_awaitable, error);
  }

  boost::beast::tcp_stream& lowest() { return boost::beast::get_lowest_layer(stream_); }
  boost::asio::ip::tcp::socket& socket() { return lowest().socket(); }

  // Reads and answers one request. Returns false if the connection must be closed.
  Awaitable<bool> ServeOne() {
    if (buffer_.size() == 0) {
      Error error;
      lowest().expires_after(Chrono(options_.idle_timeout));
      const size_t n = co_await stream_.async_read_some(buffer_.prepare(kReadBytes), Into(error));
      buffer_.commit(n);
      if (error) co_return false;
    }
    Parser parser;
    parser.header_limit(static_cast<uint32_t>(options_.max_header_bytes));
    parser.body_limit(options_.max_body_bytes);
    HttpRequest request;
    ResponseFraming framing;
    std::optional<ResponseStream::Part> refusal;
    if (co_await Read(parser, &request, &framing, &refusal)) {
      const bool keep = co_await Answer(std::move(request), framing);
      co_return keep;
    }
    if (refusal.has_value()) {
      rejected_ = true;
      framing.keep = false;
      framing.head = parser.get().method() == boost::beast::http::verb::head;
      co_await WritePart(*std::move(refusal), &framing);
    }
    co_return false;
  }

  // Reads a request that has begun. Returns false at the end of input, or with `refusal` set if the
  // request is already answered.
  Awaitable<bool> Read(Parser& parser, HttpRequest* request, ResponseFraming* framing,
                       std::optional<ResponseStream::Part>* refusal) {
    const absl::Time start = absl::Now();
    SetDeadline();
    Error error;
    HttpRejection reason;
    parser.eager(false);
    co_await Parse(parser, &error);
    if (!error) reason = CheckSupported(parser.get());
    if (!error && reason.status == 0) {
      *framing = FramingOf(parser.get());
      *request = ToHttpRequest(parser.get(), peer_);
      if (!parser.is_done()) {
        *refusal = host_.RejectByHeader(*request);
        if (!refusal->has_value()) co_await ReadBody(parser, &error);
      }
      request->body = std::move(parser.get().body());
    }
    host_.ReleaseBodyBytes(std::exchange(reserved_bytes_, 0));
    current_request_ = 0;
    deadline_.cancel();
    if (error && over_budget_) {
      std::string().swap(request->body);  // frees its memory at once
      *refusal = host_.OverloadedPart(*request);
    } else if (error) {
      reason = RejectionFor(error);
    }
    if (reason.status != 0) {
      host_.OnRejected(std::string(parser.get().method_string()), reason.status,
                       absl::Now() - start);
      *refusal = RejectionPart(reason);
    }
    co_return !error && !refusal->has_value();
  }

  Awaitable<> ReadBody(Parser& parser, Error* error) {
    // A client that has sent part of the body already does not wait for 100 Continue.
    if (ExpectsContinue(parser.get()) && buffer_.size() == 0) {
      static constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
      co_await boost::asio::async_write(
          stream_, boost::asio::buffer(kContinue, sizeof kContinue - 1), Into(*error));
    }
    parser.eager(true);
    if (!*error) co_await Parse(parser, error);
  }

  // Parses the header, or the whole request if the parser is eager. Own loop, because Beast's read
  // operations limit each field but not their sum, and an exception from its parser would end the
  // thread.
  Awaitable<> Parse(Parser& parser, Error* error) {
    namespace http = boost::beast::http;
    const bool whole = parser.eager();
    bool wants = buffer_.size() == 0;
    for (size_t all = 0; !*error && !(whole ? parser.is_done() : parser.is_header_done());) {
      if (wants) {
        const size_t room =
            std::min(whole ? kMaxPipelinedBytes : kReadBytes, buffer_.max_size() - buffer_.size());
        if (room == 0) {
          *error = http::error::buffer_overflow;
          co_return;
        }
        const size_t n = co_await stream_.async_read_some(buffer_.prepare(room), Into(*error));
        buffer_.commit(n);
        if (*error == boost::asio::error::eof) *error = http::error::partial_message;
        if (*error) co_return;
      }
      const size_t parsed = Put(parser, error);
      all += parsed;
      if (!ReserveBody(parser)) *error = boost::asio::error::no_buffer_space;
      wants = *error == http::error::need_more || buffer_.size() == 0;
      const size_t known = all + (wants ? buffer_.size() : 0);
      if (*error == http::error::need_more) *error = {};
      if (!*error && !whole && known > options_.max_header_bytes)
        *error = http::error::header_limit;
    }
  }

  size_t Put(Parser& parser, Error* error) {
    try {
      const size_t parsed = parser.put(buffer_.data(), *error);
      buffer_.consume(parsed);
      return parsed;
    } catch (const std::length_error&) {  // thrown for a trailer field of 64 KiB
      *error = boost::beast::http::error::header_limit;
      return 0;
    }
  }

  // Reserves budget for what has arrived of the body.
  bool ReserveBody(const Parser& parser) {
    const size_t more = parser.get().body().size() - reserved_bytes_;
    over_budget_ = more > 0 && !host_.ReserveBodyBytes(more);
    if (!over_budget_) reserved_bytes_ += more;
    return !over_budget_;
  }

  // Beast's own timeout closes the connection before the client can read an error. It only backs up
  // this timer, which may fire between two reads and then cancels neither.
  void SetDeadline() {
    timed_out_ = false;
    current_request_ = ++requests_;
    lowest().expires_after(Chrono(options_.read_timeout) + kCloseTimeout);
    deadline_.expires_after(Chrono(options_.read_timeout));
    deadline_.async_wait([weak = this->weak_from_this(), request = current_request_](Error error) {
      auto self = weak.lock();
      if (error || self == nullptr || self->current_request_ != request) return;
      self->timed_out_ = true;
      self->socket().cancel(error);
    });
  }

  HttpRejection RejectionFor(const Error& error) const {
    namespace http = boost::beast::http;
    if (timed_out_) {
      return {408, absl::StrCat("the request took longer than ",
                                absl::FormatDuration(options_.read_timeout))};
    }
    if (error == http::error::body_limit) {
      return {413, absl::StrCat("the body is larger than ", options_.max_body_bytes, " bytes")};
    }
    if (error == http::error::header_limit) {
      return {431,
              absl::StrCat("the headers are larger than ", options_.max_header_bytes, " bytes")};
    }
    if (error == http::error::end_of_stream ||
        error.category() != make_error_code(http::error::bad_method).category()) {
      return {};  // disconnected
    }
    return {400, absl::StrCat("malformed HTTP request: ", error.message())};
  }

  // Notices a disconnect while the answer is produced. Bytes that arrive belong to a pipelined
  // request and stay in the buffer.
  static Awaitable<> Watch(std::shared_ptr<Connection> self,
                           std::shared_ptr<ResponseStream> response) {
    Error error;
    while (!error && !response->closed()) {
      if (self->buffer_.size() < kMaxPipelinedBytes) {
        self->lowest().expires_never();  // the timeout set for writes does not apply to reads
        const size_t room = std::min(kReadBytes, kMaxPipelinedBytes - self->buffer_.size());
        const size_t n =
            co_await self->stream_.async_read_some(self->buffer_.prepare(room), Into(error));
        self->buffer_.commit(n);
      } else {
        Error cancelled;
        self->hang_up_timer_.expires_after(kHangUpPollInterval);
        co_await self->hang_up_timer_.async_wait(Into(cancelled));
        if (!cancelled && self->PeerHungUp()) error = boost::asio::error::eof;
      }
    }
    self->watching_ = false;
    self->wake_.cancel();
    if (error && !response->closed()) response->Close(true);
  }

  // Returns whether the kernel has seen the peer close, whatever is unread. The kernel cannot see
  // it if the peer has sent more than its receive buffer holds.
  bool PeerHungUp() {
    pollfd state{socket().native_handle(), POLLRDHUP, 0};
    return poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  }

  void StartWatch() {
    watching_ = true;
    boost::asio::co_spawn(stream_.get_executor(), Watch(this->shared_from_this(), response_),
                          boost::asio::detached);
  }

  Awaitable<> StopWatch() {
    Error ignored;
    while (watching_) {
      socket().cancel(ignored);
      hang_up_timer_.cancel();
      co_await wake_.async_wait(Into(ignored));
    }
  }

  // The response has new parts, or is closed.
  void OnWake() {
    wake_.cancel();
    if (response_ && response_->overflow()) {
      response_->Close(true);
      lowest().close();  // unblocks a write that waits for the client
    }
  }

  // Writes the answer. Returns false if the connection must be closed.
  Awaitable<bool> Answer(HttpRequest request, ResponseFraming framing) {
    response_ = std::make_shared<ResponseStream>(
        options_.max_unsent_bytes, [weak = this->weak_from_this()] {
          if (auto self = weak.lock()) {
            boost::asio::post(self->stream_.get_executor(), [self] { self->OnWake(); });
          }
        });
    host_.Dispatch(std::move(request), response_);
    bool good = true, unwanted = false;
    for (bool done = false; good && !done;) {
      ResponseStream::Part part;
      if (response_->closed()) {
        good = false;
      } else if (response_->Pop(&part)) {
        // A HEAD request for a stream gets the headers alone.
        unwanted = part.kind == ResponseStream::Part::kHeader && framing.head;
        done = part.kind == ResponseStream::Part::kComplete ||
               part.kind == ResponseStream::Part::kEnd || unwanted;
        good = co_await WritePart(std::move(part), &framing);
      } else {
        if (!watching_) StartWatch();
        Error ignored;
        co_await wake_.async_wait(Into(ignored));
      }
    }
    response_->Close(!good || unwanted);
    response_.reset();
    co_await StopWatch();
    co_return good&& framing.keep;
  }

  Awaitable<bool> WritePart(ResponseStream::Part part, ResponseFraming* framing) {
    namespace http = boost::beast::http;
    bool good = true;
    switch (part.kind) {
      case ResponseStream::Part::kComplete: {
        const std::string header = SerializeHeader(part, *framing, absl::Now());
        const std::array<boost::asio::const_buffer, 2> buffers = {
            boost::asio::buffer(header),
            boost::asio::buffer(part.data.data(), framing->head ? 0 : part.data.size())};
        good = co_await Write(buffers);
        break;
      }
      case ResponseStream::Part::kHeader: {
        // HTTP/1.0 has no chunked encoding: the end of the connection ends the stream.
        framing->chunked = framing->version >= 11;
        if (!framing->chunked && !framing->head) framing->keep = false;
        const std::string header = SerializeHeader(part, *framing, absl::Now());
        const std::array<boost::asio::const_buffer, 1> buffers = {boost::asio::buffer(header)};
        good = co_await Write(buffers);
        break;
      }
      case ResponseStream::Part::kChunk:
        if (framing->chunked) {
          const auto chunk = http::make_chunk(boost::asio::buffer(part.data));
          good = co_await Write(chunk);
        } else {
          const std::array<boost::asio::const_buffer, 1> buffers = {boost::asio::buffer(part.data)};
          good = co_await Write(buffers);
        }
        break;
      case ResponseStream::Part::kEnd:
        if (framing->chunked) {
          const auto end = http::make_chunk_last();
          good = co_await Write(end);
        }
        break;
      case ResponseStream::Part::kAborted:
        good = false;
        break;
    }
    co_return good;
  }

  // Writes everything, however long it takes, as long as the client keeps reading.
  template <typename Buffers>
  Awaitable<bool> Write(const Buffers& buffers) {
    boost::beast::buffers_suffix<Buffers> rest(buffers);
    Error error;
    while (!error && boost::beast::buffer_bytes(rest) > 0) {
      lowest().expires_after(Chrono(options_.write_timeout));
      const auto slice = boost::beast::buffers_prefix(kWriteSliceBytes, rest);
      const size_t n = co_await boost::asio::async_write(stream_, slice, Into(error));
      rest.consume(n);
    }
    co_return !error;
  }

  // Closing a socket with unread bytes resets the connection, and the client might lose the answer.
  Awaitable<> Drain() {
    Error error;
    socket().shutdown(boost::asio::socket_base::shutdown_send, error);
    std::string unread(kMaxPipelinedBytes, 0);
    lowest().expires_after(kCloseTimeout);
    while (!error) {
      co_await lowest().async_read_some(boost::asio::buffer(unread), Into(error));
    }
  }

  Stream stream_;
  boost::beast::flat_buffer buffer_;
  bool watching_ = false;               // Watch is reading; nobody else may read
  boost::asio::steady_timer wake_;      // never expires; cancelled to wake Answer
  boost::asio::steady_timer deadline_;  // for the request that is being read
  boost::asio::steady_timer hang_up_timer_;
  uint64_t requests_ = 0;
  uint64_t current_request_ = 0;  // number of the request being read; 0: none
  bool timed_out_ = false;
  size_t reserved_bytes_ = 0;  // for the body being read
  bool over_budget_ = false;   // the server had no budget for the body
  bool rejected_ = false;      // answered a request without reading all of it
  const HttpServerOptions& options_;
  ConnectionHost& host_;
  std::string peer_;
  std::shared_ptr<ResponseStream> response_;
};

}  // namespace espalier
