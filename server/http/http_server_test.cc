#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// A raw client, so that malformed bytes can be sent.
class Client {
 public:
  explicit Client(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    timeval timeout{10, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  }
  ~Client() { Close(); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void Send(const std::string& data) {
    EXPECT_EQ(send(fd_, data.data(), data.size(), MSG_NOSIGNAL), static_cast<ssize_t>(data.size()));
  }
  // Reads until `end` has been seen or the server closes.
  std::string ReadUntil(const std::string& end) {
    std::string all;
    char buffer[4096];
    while (!absl::StrContains(all, end)) {
      const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      all.append(buffer, n);
    }
    return all;
  }

 private:
  int fd_;
};

std::unique_ptr<HttpServer> StartServer(HttpHandler handler, HttpServerOptions options = {}) {
  auto server = HttpServer::Start(options, std::move(handler));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

void Echo(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
  responder->Send(200, "text/plain",
                  absl::StrCat(request.method, " ", request.path, " ", request.body));
}

TEST(HttpServer, AnswersSeveralRequestsOnOneConnection) {
  auto server = StartServer(Echo);
  Client client(server->port());
  client.Send("POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
  EXPECT_THAT(client.ReadUntil("hi"), HasSubstr("POST /a hi"));
  client.Send("GET /b HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("/b "), HasSubstr("HTTP/1.1 200 OK"));
}

TEST(HttpServer, PipelinedRequestsAreAnsweredInOrder) {
  auto server = StartServer(Echo);
  Client client(server->port());
  client.Send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string all = client.ReadUntil("/2 ");
  EXPECT_LT(all.find("GET /1"), all.find("GET /2"));
}

TEST(HttpServer, StreamsPartsWrittenFromAnotherThread) {
  std::thread writer;
  auto server = StartServer([&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    writer = std::thread([responder] {
      responder->StartStream(200, "text/event-stream");
      for (int i = 0; i < 3; ++i) responder->Write(absl::StrCat("data: ", i, "\n\n"));
      responder->End();
    });
  });
  Client client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string all = client.ReadUntil("0\r\n\r\n");
  EXPECT_THAT(all, HasSubstr("data: 0"));
  EXPECT_THAT(all, HasSubstr("data: 2"));
  writer.join();
}

TEST(HttpServer, TellsTheHandlerThatTheClientHasGone) {
  absl::Notification closed;
  std::shared_ptr<HttpResponder> kept;
  auto server = StartServer([&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->StartStream(200, "text/event-stream");
    responder->Write("data: first\n\n");
    responder->OnClose([&] { closed.Notify(); });
    kept = responder;
  });
  Client client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  client.ReadUntil("first");
  EXPECT_FALSE(closed.HasBeenNotified());
  client.Close();
  EXPECT_TRUE(closed.WaitForNotificationWithTimeout(absl::Seconds(10)));
}

TEST(HttpServer, MalformedAndOversizedRequestsGetAnError) {
  HttpServerOptions options;
  options.max_body_bytes = 100;
  auto server = StartServer(Echo, options);
  const struct {
    std::string request;
    std::string status;
  } cases[] = {
      {"nonsense\r\n\r\n", "400"},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n", "413"},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde", "400"},
      {"GET / HTTP/1.1\r\nX: " + std::string(20000, 'a') + "\r\n\r\n", "431"},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400"},
  };
  for (const auto& test : cases) {
    Client client(server->port());
    client.Send(test.request);
    EXPECT_THAT(client.ReadUntil("}}"), HasSubstr("HTTP/1.1 " + test.status));
  }
}

TEST(HttpServer, RequestThatNobodyAnswersGets500) {
  auto server = StartServer([](HttpRequest, std::shared_ptr<HttpResponder>) {});
  Client client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("}}"), HasSubstr("500"));
}

TEST(HttpServer, StopsWithOpenConnections) {
  auto server = StartServer(Echo);
  Client idle(server->port());
  Client half(server->port());
  half.Send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  server->Stop();
  EXPECT_EQ(idle.ReadUntil("x"), "");
}

TEST(HttpServer, TakenPortIsAnError) {
  auto server = StartServer(Echo);
  HttpServerOptions options;
  options.port = server->port();
  auto second = HttpServer::Start(options, Echo);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("127.0.0.1:", options.port)));
}

}  // namespace
}  // namespace espalier
