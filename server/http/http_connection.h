// One connection of the HTTP server: reads requests one by one and writes their answers. Only
// the HTTP server itself includes this header, because Boost.Beast is slow to compile.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/http/http_message.h"
#include "server/http/http_server.h"
#include "server/http/http_transport.h"
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

// All methods but Stop run on the transport's strand. `options` and `host` must outlive the
// connection.
class Connection : public std::enable_shared_from_this<Connection> {
  template <typename T = void>
  using Awaitable = boost::asio::awaitable<T>;
  using Error = boost::system::error_code;

 public:
  Connection(std::unique_ptr<HttpTransport> transport, const HttpServerOptions& options,
             ConnectionHost& host);
  ~Connection();

  // Serves until the client or Stop closes the connection.
  Awaitable<> Run();
  boost::asio::any_io_executor executor() { return transport_->tcp().get_executor(); }
  // Thread-safe.
  void Stop();

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  boost::beast::tcp_stream& tcp() { return transport_->tcp(); }
  boost::asio::ip::tcp::socket& socket() { return tcp().socket(); }

  // Reads and answers one request. Returns false if the connection must be closed.
  Awaitable<bool> ServeOne();
  // Reads a request that has begun. Returns false at the end of input, or with `refusal` set if the
  // request is already answered.
  Awaitable<bool> Read(Parser& parser, HttpRequest* request, ResponseFraming* framing,
                       std::optional<ResponseStream::Part>* refusal);
  Awaitable<> ReadBody(Parser& parser, Error* error);
  // Parses the header, or the whole request if the parser is eager. Own loop, because Beast's read
  // operations limit each field but not their sum, and an exception from its parser would end the
  // thread.
  Awaitable<> Parse(Parser& parser, Error* error);
  // Gives the parser what is buffered. Returns the number of bytes that it took.
  size_t Put(Parser& parser, Error* error);
  // Reserves budget for what has arrived of the body.
  bool ReserveBody(const Parser& parser);
  void SetDeadline();
  HttpRejection RejectionFor(const Error& error) const;

  // Notices a disconnect while the answer is produced. Bytes that arrive belong to a pipelined
  // request and stay in the buffer.
  static Awaitable<> Watch(std::shared_ptr<Connection> self,
                           std::shared_ptr<ResponseStream> response);
  // Returns whether the kernel has seen the peer close its side, whatever is unread. The kernel
  // cannot see it if the peer has sent more than its receive buffer holds.
  bool PeerHungUp();
  // Returns whether the connection is gone: a peer that was closed resets it when it is sent
  // something.
  bool ConnectionReset();
  // Writes what a client must ignore, so that one that is gone resets the connection.
  Awaitable<bool> WriteProbe(const ResponseFraming& framing);
  void StartWatch();
  Awaitable<> StopWatch();
  // The response has new parts, or is closed.
  void OnWake();

  // Writes the answer. Returns false if the connection must be closed.
  Awaitable<bool> Answer(HttpRequest request, ResponseFraming framing);
  Awaitable<bool> WritePart(ResponseStream::Part part, ResponseFraming* framing);
  // Writes everything, however long it takes, as long as the client keeps reading.
  Awaitable<bool> Write(std::vector<boost::asio::const_buffer> buffers);
  // Closing a socket with unread bytes resets the connection, and the client might lose the answer.
  Awaitable<> Drain();

  const std::unique_ptr<HttpTransport> transport_;
  boost::beast::flat_buffer buffer_;
  bool watching_ = false;     // Watch is reading; nobody else may read
  bool half_closed_ = false;  // the client sends no more
  bool probe_due_ = false;    // Answer is to write a probe
  // Of the current answer: whether its header is written, and is that of an event stream.
  bool header_written_ = false, streams_events_ = false;
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
