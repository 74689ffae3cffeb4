// Bodies of rejected requests, and the budgets for bytes that come in and go out.
#include <poll.h>

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/http_server.h"
#include "server/http/testing/raw_client.h"
#include "server/http/testing/start_server.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kSoon = absl::Seconds(10);

std::string Post(const std::string& path, size_t length, const std::string& headers = "") {
  return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: x\r\nContent-Length: ", length, "\r\n",
                      headers, "\r\n");
}

TEST(HttpServerBody, IsNotReadAfterAHeaderRejection) {
  std::atomic<int> handled = 0;
  HttpServerOptions options;
  options.admit = [](const HttpRequest& header, const std::shared_ptr<HttpResponder>& responder) {
    if (header.headers.at("authorization") == "Bearer good") return true;
    responder->Send(401, "text/plain", "no key for " + header.path, {{"WWW-Authenticate", "x"}});
    return false;
  };
  auto server = StartServer(
      [&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
        ++handled;
        responder->Send(200, "text/plain", "got " + request.body);
      },
      options);
  // A client that waits for 100 Continue gets none; one that does not is answered before it has
  // sent everything.
  for (const std::string expect : {"Expect: 100-continue\r\n", ""}) {
    RawClient client(server->port());
    client.Send(Post("/a?b", 1'000'000, "Authorization: Bearer bad\r\n" + expect));
    const std::string answer = client.ReadAll();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 401 Unauthorized\r\n"));
    EXPECT_THAT(answer, HasSubstr("no key for /a"));
    EXPECT_THAT(answer, HasSubstr("WWW-Authenticate: x\r\n"));
    EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  }
  EXPECT_EQ(handled, 0);
  RawClient client(server->port());
  client.Send(Post("/a", 2, "Authorization: Bearer good\r\nExpect: 100-continue\r\n"));
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("hi");
  EXPECT_THAT(client.ReadUntil("got hi"), HasSubstr("200 OK"));
}

TEST(HttpServerBody, BodiesBeingReadAreBoundedInTotal) {
  HttpServerOptions options;
  options.max_body_bytes = 800;
  options.max_reading_bytes = 1000;
  auto server = StartServer(
      [](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
        responder->Send(200, "text/plain", absl::StrCat(request.body.size(), " bytes"));
      },
      options);
  // Twice: rejected and finished bodies no longer count.
  for (int round = 0; round < 2; ++round) {
    std::array<RawClient, 2> clients{RawClient(server->port()), RawClient(server->port())};
    std::array<pollfd, 2> answers;
    for (size_t i = 0; i < clients.size(); ++i) {
      clients[i].Send(Post("/", 800) + std::string(700, 'b'));
      answers[i] = {clients[i].fd(), POLLIN, 0};
    }
    // Together they exceed the budget: the later one is rejected.
    ASSERT_GT(poll(answers.data(), answers.size(), 10'000), 0);
    const size_t refused = answers[0].revents != 0 ? 0 : 1;
    const std::string refusal = clients[refused].ReadAll();
    EXPECT_THAT(refusal, StartsWith("HTTP/1.1 503 "));
    EXPECT_THAT(refusal, HasSubstr("Retry-After: 1\r\n"));
    RawClient small(server->port());
    small.Send(Post("/", 100) + std::string(100, 'b'));
    EXPECT_THAT(small.ReadUntil(" bytes"), HasSubstr("100 bytes"));
    clients[1 - refused].Send(std::string(100, 'b'));
    EXPECT_THAT(clients[1 - refused].ReadUntil(" bytes"), HasSubstr("800 bytes"));
  }
}

// Otherwise a trailer could override the Authorization header that was checked.
TEST(HttpServerBody, TrailersAreNotHeaders) {
  absl::Mutex mutex;
  HttpRequest seen;
  auto server = StartServer([&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    absl::MutexLock lock(&mutex);
    seen = std::move(request);
    responder->Send(200, "text/plain", "done");
  });
  RawClient client(server->port());
  for (int i = 0; i < 2; ++i) {  // on one connection, which a trailer does not close
    client.Send(
        "POST /a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer mine\r\nTransfer-Encoding: "
        "chunked\r\n\r\n2\r\nhi\r\n0\r\nAuthorization: Bearer theirs\r\nX-Api-Key: theirs\r\n"
        "Connection: close\r\n\r\n");
    EXPECT_THAT(client.ReadUntil("done"), HasSubstr("200 OK"));
    absl::MutexLock lock(&mutex);
    EXPECT_EQ(seen.body, "hi");
    EXPECT_EQ(seen.headers["authorization"], "Bearer mine");
    EXPECT_EQ(seen.headers.count("x-api-key"), 0u);
  }
}

TEST(HttpServerBody, UnreadAnswersCountTowardsTheBudget) {
  HttpServerOptions options;
  options.max_all_unsent_bytes = 1 << 20;
  options.quick = [](const HttpRequest& request) { return request.path == "/quick"; };
  absl::Notification given;
  auto server = StartServer(
      [&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
        responder->Send(200, "text/plain",
                        std::string(request.path == "/large" ? 20 << 20 : 1, 'x'));
        if (request.path == "/large") given.Notify();
      },
      options);
  const auto status_of = [&](const std::string& path) {
    RawClient client(server->port());
    client.Send("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    return client.ReadAll().substr(0, 12);
  };
  RawClient slow(server->port(), /*receive_buffer=*/64 << 10);
  slow.Send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(given.WaitForNotificationWithTimeout(kSoon));
  EXPECT_EQ(status_of("/a"), "HTTP/1.1 503");
  EXPECT_EQ(status_of("/quick"), "HTTP/1.1 200");
  // The client disconnects; otherwise it would read everything.
  slow.Close();
  std::string status;
  for (const absl::Time end = absl::Now() + kSoon; absl::Now() < end;) {
    if ((status = status_of("/a")) == "HTTP/1.1 200") break;
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(status, "HTTP/1.1 200");
}

TEST(HttpServerBody, LongStreamsThatAreReadDoNotExhaustTheBudget) {
  HttpServerOptions options;
  options.max_all_unsent_bytes = 100'000;
  absl::Mutex mutex;
  std::shared_ptr<HttpResponder> stream;
  auto server = StartServer(
      [&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
        if (request.path == "/other") {
          responder->Send(200, "text/plain", "x");
          return;
        }
        responder->StartStream(200, "text/plain");
        absl::MutexLock lock(&mutex);
        stream = std::move(responder);
      },
      options);
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  absl::MutexLock lock(&mutex);
  ASSERT_TRUE(mutex.AwaitWithTimeout(
      absl::Condition(
          +[](std::shared_ptr<HttpResponder>* there) { return *there != nullptr; }, &stream),
      kSoon));
  for (int i = 0; i < 20; ++i) {
    stream->Write(std::string(10'000, '#') + "end");
    EXPECT_THAT(client.ReadUntil("end"), HasSubstr("##"));
  }
  RawClient other(server->port());
  other.Send("GET /other HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(other.ReadAll(), StartsWith("HTTP/1.1 200"));
  stream->End();
  stream.reset();
}

TEST(HttpServerBody, RefusalsByTheServerItselfAreTold) {
  absl::Mutex mutex;
  std::vector<std::string> refused;
  HttpServerOptions options;
  options.max_body_bytes = 100;
  options.read_timeout = absl::Milliseconds(200);
  options.on_rejected = [&](const std::string& method, int status, absl::Duration after) {
    absl::MutexLock lock(&mutex);
    refused.push_back(absl::StrCat(method, " ", status));
    EXPECT_GE(after, absl::ZeroDuration());
    EXPECT_LT(after, kSoon);
  };
  auto server = StartServer(
      [](HttpRequest, std::shared_ptr<HttpResponder> responder) {
        responder->Send(404, "text/plain", "not the server's");
      },
      options);
  for (const std::string& request :
       {std::string("nonsense\r\n\r\n"), std::string("GET / HTTP/1.1\r\n\r\n"), Post("/", 101),
        Post("/", 100), "GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(20'000, 'x') + "\r\n\r\n",
        std::string("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")}) {
    RawClient client(server->port());
    client.Send(request);
    EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 4"));
  }
  absl::MutexLock lock(&mutex);
  EXPECT_THAT(refused, ElementsAre(" 400", "GET 400", "POST 413", "POST 408", "GET 431"));
}

TEST(HttpServerBody, AnswersSayWhenTheyWereGiven) {
  auto server = StartServer([](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->Send(200, "text/plain", "x");
  });
  for (const std::string request :
       {"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "nonsense\r\n\r\n"}) {
    const absl::Time before = absl::Now();
    RawClient client(server->port());
    client.Send(request);
    const std::string answer = client.ReadAll();
    const size_t at = answer.find("\r\nDate: ");
    ASSERT_NE(at, std::string::npos) << answer;
    const std::string date = answer.substr(at + 8, answer.find("\r\n", at + 2) - at - 8);
    absl::Time told;
    std::string error;
    EXPECT_TRUE(absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", date, &told, &error)) << date;
    EXPECT_EQ(date.size(), 29u) << date;
    EXPECT_GE(told, before - absl::Seconds(1));
    EXPECT_LE(told, absl::Now());
  }
}

}  // namespace
}  // namespace espalier
