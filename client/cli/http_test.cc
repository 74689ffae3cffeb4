#include "client/cli/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/lib/client.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Answers one connection with fixed bytes and stores the request.
class OneShotServer {
 public:
  // Answers once the request's body ends with "}", or at once unless it `reads`.
  explicit OneShotServer(std::string response, bool reads = true)
      : response_(std::move(response)), reads_(reads) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    socklen_t size = sizeof address;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Answer(); });
  }
  ~OneShotServer() {
    if (thread_.joinable()) thread_.join();
    close(listener_);
  }
  Gateway gateway(const std::string& token = "") const {
    auto gateway = MakeGateway(absl::StrCat("127.0.0.1:", port_), false, {}, token);
    EXPECT_TRUE(gateway.ok()) << gateway.status();
    return *gateway;
  }
  std::string request() {
    thread_.join();
    return request_;
  }

 private:
  void Answer() {
    const int fd = accept(listener_, nullptr, nullptr);
    char block[4096];
    while (reads_ && !absl::StrContains(request_, "}")) {
      const ssize_t n = read(fd, block, sizeof block);
      if (n <= 0) break;
      request_.append(block, static_cast<size_t>(n));
    }
    // Byte by byte, to split the response everywhere.
    for (char c : response_) send(fd, &c, 1, MSG_NOSIGNAL);
    // Closing with unread bytes would reset the connection and drop the answer.
    shutdown(fd, SHUT_WR);
    while (read(fd, block, sizeof block) > 0) {
    }
    close(fd);
  }
  std::string response_, request_;
  const bool reads_;
  int listener_ = -1, port_ = 0;
  std::thread thread_;
};

bool Ignore(const std::string&) { return true; }
bool Unexpected(const std::string& data) {
  ADD_FAILURE() << data;
  return true;
}

TEST(HttpTest, ChunkedEventsArriveWhole) {
  OneShotServer server(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
      "7\r\ndata: a\r\na;x=y\r\n\n\n: ping\n\n\r\n8\r\ndata: b\n\r\n9\r\ndata: c\n\n\r\n"
      "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
  std::vector<std::string> events;
  absl::Status status = PostForEvents(server.gateway("tok"), "/v1/completions", "{\"a\":1}",
                                      [&](const std::string& data) {
                                        events.push_back(data);
                                        return true;
                                      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(events, ElementsAre("a", "b\nc"));
  const std::string request = server.request();
  EXPECT_THAT(request, HasSubstr("POST /v1/completions HTTP/1.1\r\n"));
  EXPECT_THAT(request, HasSubstr("Authorization: Bearer tok\r\n"));
  EXPECT_THAT(request, HasSubstr("Content-Length: 7\r\n\r\n{\"a\":1}"));
}

TEST(HttpTest, StopsReadingWhenCallbackReturnsFalse) {
  OneShotServer server("HTTP/1.1 200 OK\r\n\r\ndata: a\n\ndata: b\n\n");
  std::vector<std::string> events;
  const absl::Status status =
      PostForEvents(server.gateway(), "/", "{}", [&](const std::string& data) {
        events.push_back(data);
        return false;
      });
  EXPECT_TRUE(status.ok()) << status << ": the stream ended without [DONE], which nobody missed";
  EXPECT_THAT(events, ElementsAre("a"));
}

TEST(HttpTest, AnErrorBodyBecomesItsMessage) {
  OneShotServer server(
      "HTTP/1.1 404 Not Found\r\nContent-Length: 44\r\n\r\n{\"error\":{\"message\":\"no model x is "
      "served\"}}");
  absl::Status status = PostForEvents(server.gateway(), "/", "{}", Unexpected);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "no model x is served");
}

TEST(HttpTest, UnreadyGatewayIsNotUnreachable) {
  OneShotServer server(
      "HTTP/1.1 503 Service Unavailable\r\nContent-Length: "
      "44\r\n\r\n{\"error\":{\"message\":\"model x "
      "waits for w1\"}}");
  absl::Status status = PostForEvents(server.gateway(), "/", "{}", Unexpected);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "model x waits for w1");
  EXPECT_FALSE(IsUnreachable(status));
}

TEST(HttpTest, ABrokenStreamIsAnError) {
  for (const char* response :
       {"HTTP/1.1 200 OK\r\n\r\ndata: a\n\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "SSH-2.0-hello\r\n", "",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n"}) {
    OneShotServer server(response);
    EXPECT_FALSE(PostForEvents(server.gateway(), "/", "{}", Ignore).ok()) << response;
  }
}

TEST(HttpTest, DeadAddressIsNamed) {
  const auto gateway = MakeGateway("127.0.0.1:1", false, {}, "");
  ASSERT_TRUE(gateway.ok());
  absl::Status status = PostForEvents(*gateway, "/", "{}", Ignore);
  EXPECT_TRUE(IsUnreachable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));
}

TEST(HttpTest, TlsAlertOrNoAnswerSuggestsTls) {
  for (const char* response : {"\x15\x03\x03", ""}) {
    OneShotServer server(response);
    const absl::Status status = PostForEvents(server.gateway(), "/", "{}", Ignore);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("--http-address=https://127.0.0.1:"));
  }
}

TEST(HttpTest, TlsToPlainServerIsAClearError) {
  OneShotServer server("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n}", /*reads=*/false);
  Gateway gateway = server.gateway();
  gateway.tls = MakeGateway("https://localhost", true, {}, "")->tls;
  const absl::Status status = PostForEvents(gateway, "/", "{}", Ignore);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--http-address=http://127.0.0.1:"));
}

TEST(GatewayTest, AddressesAreReadWithAndWithoutAScheme) {
  struct {
    const char* address;
    bool wants_tls;
    const char *host, *port;
    bool tls;
  } cases[] = {{"127.0.0.1:8080", false, "127.0.0.1", "8080", false},
               {"a.example:80", true, "a.example", "80", true},
               {"http://a.example", false, "a.example", "80", false},
               {"https://a.example/", false, "a.example", "443", true},
               {"https://[::1]:8443", false, "::1", "8443", true},
               {"https://[::1]", false, "::1", "443", true}};
  for (const auto& c : cases) {
    const auto gateway = MakeGateway(c.address, c.wants_tls, {}, "");
    ASSERT_TRUE(gateway.ok()) << c.address << ": " << gateway.status();
    EXPECT_EQ(gateway->host, c.host);
    EXPECT_EQ(gateway->port, c.port);
    EXPECT_EQ(gateway->tls != nullptr, c.tls) << c.address;
  }
  for (const char* address : {"", "host", ":80", "host:", "host:x", "host:70000", "ftp://host:1",
                              "https://host/prefix", "https://", "[::1]"}) {
    EXPECT_EQ(MakeGateway(address, false, {}, "").status().code(),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
  // A client that wants TLS must not send a key in the clear.
  EXPECT_FALSE(MakeGateway("http://host:1", true, {}, "key").ok());
}

TEST(GatewayTest, PemThatIsNoneIsNamedByItsFlag) {
  const auto message = [](const GatewayTls& tls) {
    return std::string(MakeGateway("https://host", false, tls, "").status().message());
  };
  EXPECT_THAT(message({.ca = "nothing"}), HasSubstr("--ca-file"));
  EXPECT_THAT(message({.certificate = "nothing", .key = "nothing"}), HasSubstr("--cert-file"));
}

}  // namespace
}  // namespace espalier
