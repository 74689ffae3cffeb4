// The bytes of one HTTP connection, over TCP or over TLS. Connection is written against this
// interface, so that Boost.Beast's and Asio's operations are instantiated once for each transport
// rather than once for each use.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/system/error_code.hpp>
#include <memory>
#include <vector>

namespace espalier {

// All methods run on the strand of the socket. Operations end with an error when tcp() is closed or
// its timeout passes.
class HttpTransport {
 public:
  using Error = boost::system::error_code;

  virtual ~HttpTransport() = default;

  // TLS's handshake and its orderly end; over TCP nothing.
  virtual boost::asio::awaitable<void> Handshake(Error* error) = 0;
  virtual boost::asio::awaitable<void> Shutdown(Error* error) = 0;

  // Returns the number of bytes read, at least one without an error.
  virtual boost::asio::awaitable<size_t> Read(boost::asio::mutable_buffer buffer, Error* error) = 0;
  // Writes all of the buffers.
  virtual boost::asio::awaitable<void> Write(std::vector<boost::asio::const_buffer> buffers,
                                             Error* error) = 0;

  // Whether a client may close its side and still wait for the answer. With TLS the end of input is
  // the end of the connection.
  virtual bool half_closes() const = 0;

  // Has the socket, its timeouts and its executor.
  virtual boost::beast::tcp_stream& tcp() = 0;
};

std::unique_ptr<HttpTransport> MakeTcpTransport(boost::asio::ip::tcp::socket socket);
// OpenSSL counts the connections that refer to `tls`: it may be replaced while they are open.
std::unique_ptr<HttpTransport> MakeTlsTransport(boost::asio::ip::tcp::socket socket,
                                                boost::asio::ssl::context& tls);

}  // namespace espalier
