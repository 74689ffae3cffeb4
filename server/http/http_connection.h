// One connection of the HTTP server: reads requests one by one and writes their answers. Included
// by http_server.cc alone, for Boost.Beast takes long to compile.
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
#include "server/http/response_stream.h"
#include "server/http/http_message.h"
#include "server/http/http_server.h"

namespace espalier {

// What a connection has of its server. Called on the connection's strand: nothing of it blocks.
class ConnectionHost {
 public:
  virtual ~ConnectionHost() = default;
  // Sees to it that a request is answered.
  virtual void Dispatch(HttpRequest request, const std::shared_ptr<ResponseStream>& response) = 0;
  // The answer to a request whose header is reason enough not to read its body; none: it is read.
  virtual std::optional<ResponseStream::Part> RejectByHeader(const HttpRequest& header) = 0;
  // The answer to one whose body there is no room for.
  virtual ResponseStream::Part OverloadedPart(const HttpRequest& header) = 0;
  // So many bytes more of a body have been read, and are held until they are let go of. False, and
  // they are not: together with those of other connections they are too many.
  virtual bool ReserveBodyBytes(size_t bytes) = 0;
  virtual void ReleaseBodyBytes(size_t bytes) = 0;
  // The connection refused what it had read of a request, for so long; `method` may be empty.
  virtual void OnRejected(const std::string& method, int status, absl::Duration after) = 0;
};

class ConnectionBase {
 public:
  virtual ~ConnectionBase() = default;
  // From any thread.
  virtual void Stop() = 0;
};

// `Stream`: a beast::tcp_stream, or a beast::ssl_stream of one, whose executor is a strand. All but
// Stop runs on it. `options` and `host` must outlive the connection.
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
  static constexpr std::chrono::seconds kCloseTimeout{1};  // for a connection to end in good order
  static constexpr std::chrono::seconds kHangUpPollInterval{1};  // between looks at a client that says too much
  static constexpr size_t kReadBytes = 4096;            // bytes
  static constexpr size_t kMaxPipelinedBytes = 64 << 10;   // bytes taken in of requests that are not their turn
  static constexpr size_t kWriteSliceBytes = 256 << 10;  // bytes of an answer that have write_timeout

  static std::chrono::nanoseconds Chrono(absl::Duration d) { return absl::ToChronoNanoseconds(d); }

  static auto Into(Error& error) {
    return boost::asio::redirect_error(boost::asio::use_awaitable, error);
  }

  boost::beast::tcp_stream& lowest() { return boost::beast::get_lowest_layer(stream_); }
  boost::asio::ip::tcp::socket& socket() { return lowest().socket(); }

  // False if the connection must be closed.
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
    ResponseFraming form;
    std::optional<ResponseStream::Part> refusal;
    if (co_await Read(parser, &request, &form, &refusal)) {
      const bool keep = co_await Answer(std::move(request), form);
      co_return keep;
    }
    if (refusal.has_value()) {
      rejected_ = true;
      form.keep = false;
      form.head = parser.get().method() == boost::beast::http::verb::head;
      co_await WritePart(*std::move(refusal), &form);
    }
    co_return false;
  }

  // A request that has begun. False if there is none, or if it has the answer `refusal` already.
  Awaitable<bool> Read(Parser& parser, HttpRequest* request, ResponseFraming* form,
                       std::optional<ResponseStream::Part>* refusal) {
    const absl::Time start = absl::Now();
    SetDeadline();
    Error error;
    HttpRejection reason;
    parser.eager(false);
    co_await Parse(parser, &error);
    if (!error) reason = CheckSupported(parser.get());
    if (!error && reason.status == 0) {
      *form = FramingOf(parser.get());
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
      std::string().swap(request->body);  // there is no room for it
      *refusal = host_.OverloadedPart(*request);
    } else if (error) {
      reason = RejectionFor(error);
    }
    if (reason.status != 0) {
      host_.OnRejected(std::string(parser.get().method_string()), reason.status, absl::Now() - start);
      *refusal = RejectionPart(reason);
    }
    co_return !error && !refusal->has_value();
  }

  Awaitable<> ReadBody(Parser& parser, Error* error) {
    // One who has sent something of the body waits for no leave.
    if (ExpectsContinue(parser.get()) && buffer_.size() == 0) {
      static constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
      co_await boost::asio::async_write(
          stream_, boost::asio::buffer(kContinue, sizeof kContinue - 1), Into(*error));
    }
    parser.eager(true);
    if (!*error) co_await Parse(parser, error);
  }

  // The header, or all of the request if the parser is eager. Beast's operations would limit each
  // field but not all of them, and what its parser throws in one of them would end the thread.
  Awaitable<> Parse(Parser& parser, Error* error) {
    namespace http = boost::beast::http;
    const bool whole = parser.eager();
    bool wants = buffer_.size() == 0;
    for (size_t all = 0; !*error && !(whole ? parser.is_done() : parser.is_header_done());) {
      if (wants) {
        const size_t room = std::min(whole ? kMaxPipelinedBytes : kReadBytes, buffer_.max_size() - buffer_.size());
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
    } catch (const std::length_error&) {  // a field of 64 KiB, which a trailer may have
      *error = boost::beast::http::error::header_limit;
      return 0;
    }
  }

  // Counts what has come of the body.
  bool ReserveBody(const Parser& parser) {
    const size_t more = parser.get().body().size() - reserved_bytes_;
    over_budget_ = more > 0 && !host_.ReserveBodyBytes(more);
    if (!over_budget_) reserved_bytes_ += more;
    return !over_budget_;
  }

  // Beast's own time limit closes the connection, and the client would not hear why. It stands
  // behind this one, which may fall between two reads and cancel neither.
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
      return {};  // the client has gone
    }
    return {400, absl::StrCat("malformed HTTP request: ", error.message())};
  }

  // Notices that the client goes away while the answer is being made. Bytes are the next request,
  // sent early: they are kept until this one is done.
  static Awaitable<> Watch(std::shared_ptr<Connection> self, std::shared_ptr<ResponseStream> response) {
    Error error;
    while (!error && !response->closed()) {
      if (self->buffer_.size() < kMaxPipelinedBytes) {
        self->lowest().expires_never();  // a limit that the writer has set is not the reader's
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

  // Whether the kernel knows that the client has closed, whatever there is still to be read: it
  // does not if the client has sent more than the kernel, too, takes in.
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

  // Something new is in the response.
  void OnWake() {
    wake_.cancel();
    if (response_ && response_->overflow()) {
      response_->Close(true);
      lowest().close();  // a write waits for the client
    }
  }

  // False if the connection must be closed.
  Awaitable<bool> Answer(HttpRequest request, ResponseFraming form) {
    response_ =
        std::make_shared<ResponseStream>(options_.max_unsent_bytes, [weak = this->weak_from_this()] {
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
        // Nothing but the head of a stream is wanted of one.
        unwanted = part.kind == ResponseStream::Part::kHeader && form.head;
        done = part.kind == ResponseStream::Part::kComplete || part.kind == ResponseStream::Part::kEnd || unwanted;
        good = co_await WritePart(std::move(part), &form);
      } else {
        if (!watching_) StartWatch();
        Error ignored;
        co_await wake_.async_wait(Into(ignored));
      }
    }
    response_->Close(!good || unwanted);
    response_.reset();
    co_await StopWatch();
    co_return good&& form.keep;
  }

  Awaitable<bool> WritePart(ResponseStream::Part part, ResponseFraming* form) {
    namespace http = boost::beast::http;
    bool good = true;
    switch (part.kind) {
      case ResponseStream::Part::kComplete: {
        const std::string header = SerializeHeader(part, *form, absl::Now());
        const std::array<boost::asio::const_buffer, 2> buffers = {
            boost::asio::buffer(header),
            boost::asio::buffer(part.data.data(), form->head ? 0 : part.data.size())};
        good = co_await Write(buffers);
        break;
      }
      case ResponseStream::Part::kHeader: {
        // HTTP/1.0 knows no chunks: such a stream ends with its connection.
        form->chunked = form->version >= 11;
        if (!form->chunked && !form->head) form->keep = false;
        const std::string header = SerializeHeader(part, *form, absl::Now());
        const std::array<boost::asio::const_buffer, 1> buffers = {boost::asio::buffer(header)};
        good = co_await Write(buffers);
        break;
      }
      case ResponseStream::Part::kChunk:
        if (form->chunked) {
          const auto chunk = http::make_chunk(boost::asio::buffer(part.data));
          good = co_await Write(chunk);
        } else {
          const std::array<boost::asio::const_buffer, 1> buffers = {boost::asio::buffer(part.data)};
          good = co_await Write(buffers);
        }
        break;
      case ResponseStream::Part::kEnd:
        if (form->chunked) {
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

  // All of it, however long it takes a client that reads.
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

  // Closing with bytes unread resets the connection, and the client might lose the answer.
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
  bool watching_ = false;               // the watcher reads, and nobody else may meanwhile
  boost::asio::steady_timer wake_;      // never expires: cancelled to wake what waits for parts
  boost::asio::steady_timer deadline_;  // of the request that is being read
  boost::asio::steady_timer hang_up_timer_;
  uint64_t requests_ = 0;
  uint64_t current_request_ = 0;  // the number of the request that is being read; 0: none is
  bool timed_out_ = false;     // the deadline has passed
  size_t reserved_bytes_ = 0;       // bytes of its body
  bool over_budget_ = false;  // with more of them there would be too many
  bool rejected_ = false;  // an answer was given to what may not have been read to its end
  const HttpServerOptions& options_;
  ConnectionHost& host_;
  std::string peer_;
  std::shared_ptr<ResponseStream> response_;
};

}  // namespace espalier
