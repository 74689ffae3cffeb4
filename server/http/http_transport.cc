#include "server/http/http_transport.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <type_traits>
#include <utility>

namespace espalier {
namespace {

using TlsStream = boost::beast::ssl_stream<boost::beast::tcp_stream>;

template <typename Stream>
class StreamTransport : public HttpTransport {
  template <typename T = void>
  using Awaitable = boost::asio::awaitable<T>;

 public:
  explicit StreamTransport(Stream stream) : stream_(std::move(stream)) {}

  Awaitable<> Handshake(Error* error) override {
    if constexpr (kSecure) {
      co_await stream_.async_handshake(boost::asio::ssl::stream_base::server, Into(error));
    }
    co_return;
  }

  Awaitable<> Shutdown(Error* error) override {
    if constexpr (kSecure) co_await stream_.async_shutdown(Into(error));
    co_return;
  }

  Awaitable<size_t> Read(boost::asio::mutable_buffer buffer, Error* error) override {
    const size_t n = co_await stream_.async_read_some(buffer, Into(error));
    co_return n;
  }

  Awaitable<> Write(std::vector<boost::asio::const_buffer> buffers, Error* error) override {
    co_await boost::asio::async_write(stream_, buffers, Into(error));
  }

  bool half_closes() const override { return !kSecure; }

  boost::beast::tcp_stream& tcp() override { return boost::beast::get_lowest_layer(stream_); }

 private:
  static constexpr bool kSecure = std::is_same_v<Stream, TlsStream>;

  static auto Into(Error* error) {
    return boost::asio::redirect_error(boost::asio::use_awaitable, *error);
  }

  Stream stream_;
};

}  // namespace

std::unique_ptr<HttpTransport> MakeTcpTransport(boost::asio::ip::tcp::socket socket) {
  return std::make_unique<StreamTransport<boost::beast::tcp_stream>>(
      boost::beast::tcp_stream(std::move(socket)));
}

std::unique_ptr<HttpTransport> MakeTlsTransport(boost::asio::ip::tcp::socket socket,
                                                boost::asio::ssl::context& tls) {
  return std::make_unique<StreamTransport<TlsStream>>(TlsStream(std::move(socket), tls));
}

}  // namespace espalier
