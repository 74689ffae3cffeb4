#include "server/http/http_connection.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace espalier {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::awaitable;
using boost::system::error_code;

constexpr std::chrono::seconds kCloseTimeout{1};        // for an orderly close
constexpr std::chrono::seconds kHangUpPollInterval{1};  // while input is paused
// Of a client that has closed its side.
constexpr std::chrono::milliseconds kResetPollInterval{250};
constexpr int kPollsPerProbe = 20;
constexpr size_t kReadBytes = 4096;
constexpr size_t kMaxPipelinedBytes = 64 << 10;  // read ahead of later requests
constexpr size_t kWriteSliceBytes = 256 << 10;   // written per write_timeout

std::chrono::nanoseconds Chrono(absl::Duration d) { return absl::ToChronoNanoseconds(d); }

auto Into(error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

// The buffers of a chunk, which must outlive them.
template <typename Chunk>
std::vector<asio::const_buffer> BuffersOf(const Chunk& chunk) {
  std::vector<asio::const_buffer> buffers;
  for (const asio::const_buffer buffer : boost::beast::buffers_range_ref(chunk)) {
    buffers.push_back(buffer);
  }
  return buffers;
}

}  // namespace

Connection::Connection(std::unique_ptr<HttpTransport> transport, const HttpServerOptions& options,
                       ConnectionHost& host)
    : transport_(std::move(transport)),
      buffer_(2 * options.max_header_bytes + kMaxPipelinedBytes),
      wake_(executor()),
      deadline_(executor()),
      hang_up_timer_(executor()),
      options_(options),
      host_(host) {
  wake_.expires_at(std::chrono::steady_clock::time_point::max());
  error_code error;
  const asio::ip::tcp::endpoint peer = socket().remote_endpoint(error);
  if (!error) peer_ = absl::StrCat(peer.address().to_string(), ":", peer.port());
  socket().set_option(asio::ip::tcp::no_delay(true), error);
}

Connection::~Connection() {
  host_.ReleaseBodyBytes(reserved_bytes_);
  if (response_) response_->Close(true, /*wake=*/false);
}

awaitable<void> Connection::Run() {
  error_code error;
  tcp().expires_after(Chrono(options_.read_timeout));
  co_await transport_->Handshake(&error);
  bool keep = !error;
  while (keep) keep = co_await ServeOne();
  error_code ignored;
  tcp().expires_after(kCloseTimeout);
  co_await transport_->Shutdown(&ignored);
  if (rejected_) co_await Drain();
  socket().shutdown(asio::socket_base::shutdown_both, ignored);
  tcp().close();
}

void Connection::Stop() {
  asio::post(executor(), [self = shared_from_this()] {
    if (self->response_) self->response_->Close(true);
    self->tcp().close();
  });
}

awaitable<bool> Connection::ServeOne() {
  if (buffer_.size() == 0) {
    error_code error;
    tcp().expires_after(Chrono(options_.idle_timeout));
    const size_t n = co_await transport_->Read(buffer_.prepare(kReadBytes), &error);
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
    framing.head = parser.get().method() == http::verb::head;
    co_await WritePart(*std::move(refusal), &framing);
  }
  co_return false;
}

awaitable<bool> Connection::Read(Parser& parser, HttpRequest* request, ResponseFraming* framing,
                                 std::optional<ResponseStream::Part>* refusal) {
  const absl::Time start = absl::Now();
  SetDeadline();
  error_code error;
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
    host_.OnRejected(std::string(parser.get().method_string()), reason.status, absl::Now() - start);
    *refusal = RejectionPart(reason, PathOf(parser.get()), options_);
  }
  co_return !error && !refusal->has_value();
}

awaitable<void> Connection::ReadBody(Parser& parser, error_code* error) {
  // A client that has sent part of the body already does not wait for 100 Continue.
  if (ExpectsContinue(parser.get()) && buffer_.size() == 0) {
    static constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
    std::vector<asio::const_buffer> line = {asio::buffer(kContinue, sizeof kContinue - 1)};
    co_await transport_->Write(std::move(line), error);
  }
  parser.eager(true);
  if (!*error) co_await Parse(parser, error);
}

awaitable<void> Connection::Parse(Parser& parser, error_code* error) {
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
      const size_t n = co_await transport_->Read(buffer_.prepare(room), error);
      buffer_.commit(n);
      if (*error == asio::error::eof) *error = http::error::partial_message;
      if (*error) co_return;
    }
    const size_t parsed = Put(parser, error);
    all += parsed;
    if (!ReserveBody(parser)) *error = asio::error::no_buffer_space;
    wants = *error == http::error::need_more || buffer_.size() == 0;
    const size_t known = all + (wants ? buffer_.size() : 0);
    if (*error == http::error::need_more) *error = {};
    if (!*error && !whole && known > options_.max_header_bytes) *error = http::error::header_limit;
  }
}

size_t Connection::Put(Parser& parser, error_code* error) {
  try {
    const size_t parsed = parser.put(buffer_.data(), *error);
    buffer_.consume(parsed);
    return parsed;
  } catch (const std::length_error&) {  // thrown for a trailer field of 64 KiB
    *error = http::error::header_limit;
    return 0;
  }
}

bool Connection::ReserveBody(const Parser& parser) {
  const size_t more = parser.get().body().size() - reserved_bytes_;
  over_budget_ = more > 0 && !host_.ReserveBodyBytes(more);
  if (!over_budget_) reserved_bytes_ += more;
  return !over_budget_;
}

// Beast's own timeout closes the connection before the client can read an error. It only backs up
// this timer, which may fire between two reads and then cancels neither.
void Connection::SetDeadline() {
  timed_out_ = false;
  current_request_ = ++requests_;
  tcp().expires_after(Chrono(options_.read_timeout) + kCloseTimeout);
  deadline_.expires_after(Chrono(options_.read_timeout));
  deadline_.async_wait([weak = weak_from_this(), request = current_request_](error_code error) {
    auto self = weak.lock();
    if (error || self == nullptr || self->current_request_ != request) return;
    self->timed_out_ = true;
    self->socket().cancel(error);
  });
}

HttpRejection Connection::RejectionFor(const error_code& error) const {
  if (timed_out_) {
    return {408, absl::StrCat("the request took longer than ",
                              absl::FormatDuration(options_.read_timeout))};
  }
  if (error == http::error::body_limit) {
    return {413, absl::StrCat("the body is larger than ", options_.max_body_bytes, " bytes")};
  }
  if (error == http::error::header_limit) {
    return {431, absl::StrCat("the headers are larger than ", options_.max_header_bytes, " bytes")};
  }
  if (error == http::error::end_of_stream ||
      error.category() != make_error_code(http::error::bad_method).category()) {
    return {};  // disconnected
  }
  return {400, absl::StrCat("malformed HTTP request: ", error.message())};
}

awaitable<void> Connection::Watch(std::shared_ptr<Connection> self,
                                  std::shared_ptr<ResponseStream> response) {
  error_code error;
  for (int polls = 1; !error && !response->closed();) {
    if (self->half_closed_) {
      error_code cancelled;
      self->hang_up_timer_.expires_after(kResetPollInterval);
      co_await self->hang_up_timer_.async_wait(Into(cancelled));
      if (self->ConnectionReset()) error = asio::error::connection_reset;
      if (!cancelled && !error && polls++ % kPollsPerProbe == 1) {
        self->probe_due_ = true;
        self->wake_.cancel();
      }
    } else if (self->buffer_.size() < kMaxPipelinedBytes) {
      self->tcp().expires_never();  // the timeout set for writes does not apply to reads
      const size_t room = std::min(kReadBytes, kMaxPipelinedBytes - self->buffer_.size());
      const size_t n = co_await self->transport_->Read(self->buffer_.prepare(room), &error);
      self->buffer_.commit(n);
      if (error == asio::error::eof && self->transport_->half_closes()) {
        self->half_closed_ = true;
        error = {};
      }
    } else {
      error_code cancelled;
      self->hang_up_timer_.expires_after(kHangUpPollInterval);
      co_await self->hang_up_timer_.async_wait(Into(cancelled));
      if (!cancelled && self->PeerHungUp()) {
        self->half_closed_ = self->transport_->half_closes();
        if (!self->half_closed_) error = asio::error::eof;
      }
    }
  }
  self->watching_ = false;
  self->wake_.cancel();
  if (error && !response->closed()) response->Close(true);
}

bool Connection::PeerHungUp() {
  pollfd state{socket().native_handle(), POLLRDHUP, 0};
  return poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool Connection::ConnectionReset() {
  pollfd state{socket().native_handle(), 0, 0};
  return poll(&state, 1, 0) > 0 && (state.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

// An interim response, which clients must accept unasked (RFC 9110, 15.2), or a comment of an event
// stream. HTTP/1.0 has neither: such a client is found gone when it is answered.
awaitable<bool> Connection::WriteProbe(const ResponseFraming& framing) {
  static constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
  static constexpr char kComment[] = ":\n\n";
  bool good = true;
  if (!header_written_ && framing.version >= 11) {
    std::vector<asio::const_buffer> line = {asio::buffer(kContinue, sizeof kContinue - 1)};
    good = co_await Write(std::move(line));
  } else if (streams_events_ && framing.chunked) {
    const auto chunk = http::make_chunk(asio::buffer(kComment, sizeof kComment - 1));
    good = co_await Write(BuffersOf(chunk));
  }
  co_return good;
}

void Connection::StartWatch() {
  watching_ = true;
  asio::co_spawn(executor(), Watch(shared_from_this(), response_), asio::detached);
}

awaitable<void> Connection::StopWatch() {
  error_code ignored;
  while (watching_) {
    socket().cancel(ignored);
    hang_up_timer_.cancel();
    co_await wake_.async_wait(Into(ignored));
  }
}

void Connection::OnWake() {
  wake_.cancel();
  if (response_ && response_->overflow()) {
    response_->Close(true);
    tcp().close();  // unblocks a write that waits for the client
  }
}

awaitable<bool> Connection::Answer(HttpRequest request, ResponseFraming framing) {
  response_ =
      std::make_shared<ResponseStream>(options_.max_unsent_bytes, [weak = weak_from_this()] {
        if (auto self = weak.lock()) {
          asio::post(self->executor(), [self] { self->OnWake(); });
        }
      });
  header_written_ = streams_events_ = probe_due_ = false;
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
      header_written_ = true;
      streams_events_ = streams_events_ || part.content_type == "text/event-stream";
      good = co_await WritePart(std::move(part), &framing);
    } else if (std::exchange(probe_due_, false)) {
      good = co_await WriteProbe(framing);
    } else {
      if (!watching_) StartWatch();
      error_code ignored;
      co_await wake_.async_wait(Into(ignored));
    }
  }
  response_->Close(!good || unwanted);
  response_.reset();
  co_await StopWatch();
  co_return good&& framing.keep;
}

awaitable<bool> Connection::WritePart(ResponseStream::Part part, ResponseFraming* framing) {
  bool good = true;
  switch (part.kind) {
    case ResponseStream::Part::kComplete: {
      const std::string header = SerializeHeader(part, *framing, absl::Now());
      std::vector<asio::const_buffer> buffers = {
          asio::buffer(header),
          asio::buffer(part.data.data(), framing->head ? 0 : part.data.size())};
      good = co_await Write(std::move(buffers));
      break;
    }
    case ResponseStream::Part::kHeader: {
      // HTTP/1.0 has no chunked encoding: the end of the connection ends the stream.
      framing->chunked = framing->version >= 11;
      if (!framing->chunked && !framing->head) framing->keep = false;
      const std::string header = SerializeHeader(part, *framing, absl::Now());
      std::vector<asio::const_buffer> buffers = {asio::buffer(header)};
      good = co_await Write(std::move(buffers));
      break;
    }
    case ResponseStream::Part::kChunk:
      if (framing->chunked) {
        const auto chunk = http::make_chunk(asio::buffer(part.data));
        good = co_await Write(BuffersOf(chunk));
      } else {
        std::vector<asio::const_buffer> buffers = {asio::buffer(part.data)};
        good = co_await Write(std::move(buffers));
      }
      break;
    case ResponseStream::Part::kEnd:
      if (framing->chunked) {
        const auto end = http::make_chunk_last();
        good = co_await Write(BuffersOf(end));
      }
      break;
    case ResponseStream::Part::kAborted:
      good = false;
      break;
  }
  co_return good;
}

awaitable<bool> Connection::Write(std::vector<asio::const_buffer> buffers) {
  error_code error;
  for (size_t first = 0; !error && first < buffers.size();) {
    std::vector<asio::const_buffer> slice;
    for (size_t room = kWriteSliceBytes; room > 0 && first < buffers.size();) {
      slice.push_back(asio::buffer(buffers[first], room));
      room -= slice.back().size();
      buffers[first] += slice.back().size();
      if (buffers[first].size() == 0) ++first;
    }
    tcp().expires_after(Chrono(options_.write_timeout));
    co_await transport_->Write(std::move(slice), &error);
  }
  co_return !error;
}

awaitable<void> Connection::Drain() {
  error_code error;
  socket().shutdown(asio::socket_base::shutdown_send, error);
  std::string unread(kMaxPipelinedBytes, 0);
  tcp().expires_after(kCloseTimeout);
  while (!error) {
    co_await tcp().async_read_some(asio::buffer(unread), Into(error));
  }
}

}  // namespace espalier
