#include "server/http/http_server.h"

#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/testing/flooding_handler.h"
#include "server/http/testing/raw_client.h"
#include "server/http/testing/start_server.h"

namespace espalier {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::Duration kSoon = absl::Seconds(10);

TEST(HttpServer, AnswersSeveralRequestsOnOneConnection) {
  auto server = StartServer(Echo);
  RawClient client(server->port());
  client.Send("POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
  EXPECT_THAT(client.ReadUntil("hi"), HasSubstr("POST /a hi"));
  client.Send("GET /b HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("/b "), HasSubstr("HTTP/1.1 200 OK"));
}

TEST(HttpServer, PipelinedRequestsAreAnsweredInOrder) {
  auto server = StartServer(Echo);
  RawClient client(server->port());
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
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string all = client.ReadUntil("0\r\n\r\n");
  EXPECT_THAT(all, HasSubstr("data: 0"));
  EXPECT_THAT(all, HasSubstr("data: 2"));
  writer.join();
}

TEST(HttpServer, WholeAnswerMayExceedTheUnsentLimit) {
  HttpServerOptions options;
  options.max_unsent_bytes = 1 << 20;
  constexpr size_t kSize = 20 << 20;
  auto server = StartServer(
      [](HttpRequest, std::shared_ptr<HttpResponder> responder) {
        responder->Send(200, "text/plain", std::string(kSize, 'x'));
      },
      options);
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string all = client.ReadAll();
  EXPECT_THAT(all.substr(0, 1000), HasSubstr(absl::StrCat("Content-Length: ", kSize)));
  EXPECT_EQ(all.size() - all.find("\r\n\r\n") - 4, kSize);
}

TEST(HttpServer, WholeAnswerIsSentToTheEndAsLongAsTheClientReads) {
  HttpServerOptions options;
  options.write_timeout = absl::Milliseconds(400);
  constexpr size_t kSize = 24 << 20;
  auto server = StartServer(
      [](HttpRequest, std::shared_ptr<HttpResponder> responder) {
        responder->Send(200, "text/plain", std::string(kSize, 'x'));
      },
      options);
  RawClient client(server->port(), /*receive_buffer=*/64 << 10);
  client.Send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  size_t all = 0;
  const absl::Time start = absl::Now();
  for (std::string some; !(some = client.Read(256 << 10)).empty(); all += some.size()) {
    absl::SleepFor(absl::Milliseconds(2));
  }
  EXPECT_GT(all, kSize);
  EXPECT_GT(absl::Now() - start, options.write_timeout);  // otherwise the test shows nothing
}

TEST(HttpServer, StalledClientTimesOutAWholeAnswer) {
  HttpServerOptions options;
  options.write_timeout = absl::Milliseconds(100);
  constexpr size_t kSize = 24 << 20;
  absl::Notification closed;
  auto server = StartServer(
      [&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
        responder->OnClose([&] { closed.Notify(); });
        responder->Send(200, "text/plain", std::string(kSize, 'x'));
      },
      options);
  RawClient client(server->port(), /*receive_buffer=*/64 << 10);
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(closed.WaitForNotificationWithTimeout(kSoon));
}

TEST(HttpServer, OnePartOfAStreamMayBeOfAnySize) {
  HttpServerOptions options;
  options.max_unsent_bytes = 1 << 20;
  constexpr size_t kSize = 5 << 20;
  auto server = StartServer(
      [](HttpRequest, std::shared_ptr<HttpResponder> responder) {
        responder->StartStream(200, "text/plain");
        responder->Write(std::string(kSize, '#'));
        responder->End();
      },
      options);
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string all = client.ReadAll();
  EXPECT_EQ(std::count(all.begin(), all.end(), '#'), kSize);
  EXPECT_THAT(all.substr(all.size() - 7), "\r\n0\r\n\r\n");
}

TEST(HttpServer, UnreadStreamIsClosedDuringABlockedWrite) {
  HttpServerOptions options;
  options.max_unsent_bytes = 1 << 20;
  options.write_timeout = absl::Hours(1);
  FloodingHandler flood;
  auto server = StartServer(flood.Handler(kSoon), options);
  RawClient client(server->port(), /*receive_buffer=*/64 << 10);
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(flood.WaitUntilClosed(kSoon));
}

// Keeps responders, and whether their clients have disconnected.
class Waiting {
 public:
  HttpHandler Handler() {
    return [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
      responder->OnClose([this] { closed_.Notify(); });
      absl::MutexLock lock(&mutex_);
      request_ = std::move(request);
      responder_ = std::move(responder);
    };
  }
  // Waits for the next request.
  std::shared_ptr<HttpResponder> Next(HttpRequest* request = nullptr) {
    absl::MutexLock lock(&mutex_);
    const auto there = [this] {
      mutex_.AssertHeld();
      return responder_ != nullptr;
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), kSoon));
    if (request != nullptr) *request = request_;
    return std::move(responder_);
  }
  absl::Notification& closed() { return closed_; }

 private:
  absl::Mutex mutex_;
  HttpRequest request_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<HttpResponder> responder_ ABSL_GUARDED_BY(mutex_);
  absl::Notification closed_;
};

TEST(HttpServer, DisconnectIsSeenBehindPipelinedBytes) {
  const std::string request = "GET /1 HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string next = "GET /2 HTTP/1.1\r\nHost: x\r\n\r\n";
  // More than the server reads ahead, but not more than the kernel buffers.
  const std::string large =
      "POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n" + std::string(90000, 'x');
  for (const std::string& ahead : {std::string("x"), next, large}) {
    for (const bool at_once : {true, false}) {
      SCOPED_TRACE(absl::StrCat(ahead.size(), " bytes ahead", at_once ? ", at once" : ""));
      Waiting waiting;
      auto server = StartServer(waiting.Handler());
      RawClient client(server->port());
      client.Send(at_once ? request + ahead : request);
      const std::shared_ptr<HttpResponder> responder = waiting.Next();
      if (!at_once) client.Send(ahead);
      // the server reads the bytes before it sees the close
      absl::SleepFor(absl::Milliseconds(50));
      EXPECT_FALSE(waiting.closed().HasBeenNotified());
      client.Close();
      EXPECT_TRUE(waiting.closed().WaitForNotificationWithTimeout(kSoon));
      server->Stop();
    }
  }
}

TEST(HttpServer, PipelinedRequestsWaitForEarlierAnswers) {
  Waiting waiting;
  auto server = StartServer(waiting.Handler());
  RawClient client(server->port());
  client.Send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n");
  std::shared_ptr<HttpResponder> responder = waiting.Next();
  // Longer than what is read ahead.
  std::string body;
  for (int i = 0; body.size() < 400'000; ++i) absl::StrAppend(&body, i, ",");
  client.Send(absl::StrCat("POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(),
                           "\r\n\r\n", body, "GET /3 HTTP/1.1\r\nHost: x\r\n\r\n"));
  absl::SleepFor(absl::Milliseconds(50));
  responder->Send(200, "text/plain", "first");
  EXPECT_THAT(client.ReadUntil("first"), HasSubstr("200 OK"));
  HttpRequest request;
  responder = waiting.Next(&request);
  EXPECT_EQ(request.path, "/2");
  EXPECT_EQ(request.body, body);
  responder->Send(200, "text/plain", "second");
  EXPECT_THAT(client.ReadUntil("second"), HasSubstr("200 OK"));
  responder = waiting.Next(&request);
  EXPECT_EQ(request.path, "/3");
  responder->Send(200, "text/plain", "third");
  EXPECT_THAT(client.ReadUntil("third"), HasSubstr("200 OK"));
  EXPECT_FALSE(waiting.closed().HasBeenNotified());
}

TEST(HttpServer, HandlerIsToldOfADisconnect) {
  absl::Notification closed;
  std::shared_ptr<HttpResponder> kept;
  auto server = StartServer([&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->StartStream(200, "text/event-stream");
    responder->Write("data: first\n\n");
    responder->OnClose([&] { closed.Notify(); });
    kept = responder;
  });
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  client.ReadUntil("first");
  EXPECT_FALSE(closed.HasBeenNotified());
  client.Close();
  EXPECT_TRUE(closed.WaitForNotificationWithTimeout(kSoon));
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
    RawClient client(server->port());
    client.Send(test.request);
    EXPECT_THAT(client.ReadUntil("}}"), HasSubstr("HTTP/1.1 " + test.status));
  }
}

TEST(HttpServer, RequestThatNobodyAnswersGets500) {
  auto server = StartServer([](HttpRequest, std::shared_ptr<HttpResponder>) {});
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("}}"), HasSubstr("500"));
}

void Stream(HttpRequest, std::shared_ptr<HttpResponder> responder) {
  responder->StartStream(200, "text/event-stream");
  responder->Write("data: 1\n\n");
  responder->Write("data: 2\n\n");
  responder->End();
}

TEST(HttpServer, Http10StreamEndsWithTheConnection) {
  auto server = StartServer(Stream);
  RawClient client(server->port());
  client.Send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const std::string all = client.ReadAll();
  EXPECT_THAT(all, StartsWith("HTTP/1.0 200 OK\r\n"));
  EXPECT_THAT(all, Not(HasSubstr("chunked")));
  EXPECT_THAT(all, Not(HasSubstr("keep-alive")));
  EXPECT_THAT(all, EndsWith("\r\n\r\ndata: 1\n\ndata: 2\n\n"));
}

TEST(HttpServer, HeadOfAStreamSendsHeadersAndStopsTheWriter) {
  absl::Notification closed;
  auto server = StartServer([&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    if (request.method != "HEAD") {
      Echo(std::move(request), std::move(responder));
      return;
    }
    responder->OnClose([&] { closed.Notify(); });
    Stream(std::move(request), std::move(responder));
  });
  RawClient client(server->port());
  client.Send("HEAD / HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string all = client.ReadUntil("/b ");
  EXPECT_THAT(all, Not(HasSubstr("data: ")));
  // Nothing in between.
  EXPECT_THAT(all.substr(all.find("\r\n\r\n") + 4), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(closed.WaitForNotificationWithTimeout(kSoon));
}

TEST(HttpServer, HeadOfAWholeAnswerSaysItsLength) {
  auto server = StartServer(Echo);
  RawClient client(server->port());
  client.Send("HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string all = client.ReadAll();
  EXPECT_THAT(all, HasSubstr("Content-Length: 8\r\n"));
  EXPECT_THAT(all, EndsWith("\r\n\r\n"));
}

TEST(HttpServer, Expect100ContinueIsAnswered) {
  HttpServerOptions options;
  options.max_body_bytes = 100;
  auto server = StartServer(Echo, options);
  const std::string ask = "POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\n";
  RawClient client(server->port());
  for (int i = 0; i < 2; ++i) {
    client.Send(ask + "Content-Length: 2\r\n\r\n");
    EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    client.Send("hi");
    EXPECT_THAT(client.ReadUntil("/a hi"), StartsWith("HTTP/1.1 200 OK\r\n"));
  }
  // A client that does not wait gets no 100 Continue.
  client.Send(ask + "Content-Length: 2\r\n\r\nhi");
  EXPECT_THAT(client.ReadUntil("/a hi"), StartsWith("HTTP/1.1 200 OK\r\n"));
  // HTTP/1.0 has no 100 Continue.
  RawClient old(server->port());
  old.Send("POST /a HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  absl::SleepFor(absl::Milliseconds(50));
  old.Send("hi");
  EXPECT_THAT(old.ReadAll(), StartsWith("HTTP/1.0 200 OK\r\n"));

  RawClient large(server->port());
  large.Send(ask + "Content-Length: 101\r\n\r\n");
  EXPECT_THAT(large.ReadAll(), StartsWith("HTTP/1.1 413 "));
  RawClient other(server->port());
  other.Send("POST /a HTTP/1.1\r\nHost: x\r\nExpect: more\r\nContent-Length: 2\r\n\r\n");
  EXPECT_THAT(other.ReadAll(), StartsWith("HTTP/1.1 417 "));
}

TEST(HttpServer, StopsWithOpenConnections) {
  auto server = StartServer(Echo);
  RawClient idle(server->port());
  RawClient half(server->port());
  half.Send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  server->Stop();
  EXPECT_EQ(idle.ReadUntil("x"), "");
}

TEST(HttpServer, ConnectionsThatComeWhileItStopsAreClosed) {
  for (int round = 0; round < 30; ++round) {
    auto server = StartServer(Echo);
    RawClient first(server->port()), second(server->port()), third(server->port());
    std::thread late([port = server->port()] { RawClient client(port); });
    const absl::Time start = absl::Now();
    server->Stop();
    for (RawClient* client : {&first, &second, &third}) EXPECT_EQ(client->ReadAll(), "");
    EXPECT_LT(absl::Now() - start, absl::Seconds(1));  // no needless wait
    late.join();
  }
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
