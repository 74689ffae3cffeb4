#include "server/http/http_server.h"

#include <atomic>
#include <stdexcept>
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

void Echo(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
  responder->Send(200, "text/plain",
                  absl::StrCat(request.method, " ", request.path, " ", request.body));
}

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

TEST(HttpServer, BlockedHandlersStopNeitherQuickRequestsNorStreams) {
  HttpServerOptions options;
  options.handler_threads = 2;
  options.max_waiting_requests = 2;
  options.quick = [](const HttpRequest& request) { return request.path == "/quick"; };
  absl::Notification go;
  std::atomic<int> waiting = 0;
  absl::Mutex mutex;
  std::shared_ptr<HttpResponder> stream;
  auto server = StartServer(
      [&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
        if (request.path == "/stream") {
          responder->StartStream(200, "text/event-stream");
          responder->Write("data: begun\n\n");
          absl::MutexLock lock(&mutex);
          stream = std::move(responder);
          return;
        }
        if (request.path == "/wait") {
          ++waiting;
          go.WaitForNotification();
        }
        responder->Send(200, "text/plain", absl::StrCat("answer to ", request.path));
      },
      options);
  RawClient watcher(server->port());
  watcher.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  watcher.ReadUntil("begun");
  const std::string wait = "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n";
  RawClient first(server->port()), second(server->port()), third(server->port()),
      fourth(server->port()), refused(server->port());
  first.Send(wait);
  second.Send(wait);
  while (waiting < 2) absl::SleepFor(absl::Milliseconds(1));

  RawClient quick(server->port());
  quick.Send("GET /quick HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(quick.ReadUntil("/quick"), HasSubstr("200 OK"));
  {
    absl::MutexLock lock(&mutex);
    stream->Write("data: more\n\n");
  }
  EXPECT_THAT(watcher.ReadUntil("more\n\n"), HasSubstr("data: more"));

  // Fills the queue for handler threads.
  third.Send(wait);
  fourth.Send(wait);
  absl::SleepFor(absl::Milliseconds(100));
  refused.Send(wait);
  const std::string refusal = refused.ReadUntil("}}");
  EXPECT_THAT(refusal, HasSubstr("HTTP/1.1 503"));
  EXPECT_THAT(refusal, HasSubstr("Retry-After: 1\r\n"));
  EXPECT_EQ(waiting, 2);
  go.Notify();
  for (RawClient* client : {&first, &second, &third, &fourth}) {
    EXPECT_THAT(client->ReadUntil("to /wait"), HasSubstr("200 OK"));
  }
  refused.Send(wait);  // on the same connection
  EXPECT_THAT(refused.ReadUntil("to /wait"), HasSubstr("200 OK"));
  absl::MutexLock lock(&mutex);
  stream.reset();
}

TEST(HttpServer, BodiesOfRequestsThatWaitAreBounded) {
  HttpServerOptions options;
  options.handler_threads = 1;
  options.max_body_bytes = 800;
  options.max_waiting_bytes = 1000;
  absl::Notification go;
  std::atomic<int> waiting = 0;
  auto server = StartServer(
      [&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
        ++waiting;
        go.WaitForNotification();
        responder->Send(200, "text/plain", absl::StrCat(request.body.size(), " bytes"));
      },
      options);
  const auto post = [](int size) {
    return absl::StrCat("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ", size, "\r\n\r\n",
                        std::string(size, 'b'));
  };
  RawClient runs(server->port()), waits(server->port()), refused(server->port()),
      small(server->port());
  runs.Send(post(800));
  while (waiting < 1) absl::SleepFor(absl::Milliseconds(1));
  waits.Send(post(800));
  absl::SleepFor(absl::Milliseconds(100));
  refused.Send(post(800));
  EXPECT_THAT(refused.ReadUntil("}}"), HasSubstr("HTTP/1.1 503"));
  small.Send(post(200));
  absl::SleepFor(absl::Milliseconds(100));
  go.Notify();
  for (RawClient* client : {&runs, &waits}) {
    EXPECT_THAT(client->ReadUntil(" bytes"), HasSubstr("800 bytes"));
  }
  EXPECT_THAT(small.ReadUntil(" bytes"), HasSubstr("200 bytes"));
  refused.Send(post(800));  // finished requests no longer count
  EXPECT_THAT(refused.ReadUntil(" bytes"), HasSubstr("800 bytes"));
}

TEST(HttpServer, OverloadedHandlerMayAnswer) {
  HttpServerOptions options;
  options.max_waiting_requests = 0;
  options.overloaded = [](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    responder->Send(429, "text/plain", "not " + request.path);
  };
  auto server = StartServer(Echo, options);
  RawClient client(server->port());
  client.Send("GET /this HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("not /this"), HasSubstr("HTTP/1.1 429"));
}

TEST(HttpServer, DisconnectedQueuedRequestIsNotHandled) {
  HttpServerOptions options;
  options.handler_threads = 1;
  absl::Notification go;
  std::atomic<int> waiting = 0, handled = 0;
  auto server = StartServer(
      [&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
        ++waiting;
        if (request.path == "/wait") go.WaitForNotification();
        if (request.path == "/left") ++handled;
        responder->Send(200, "text/plain", "answer to " + request.path);
      },
      options);
  RawClient first(server->port()), last(server->port());
  first.Send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  while (waiting < 1) absl::SleepFor(absl::Milliseconds(1));
  {
    RawClient left(server->port());
    left.Send("GET /left HTTP/1.1\r\nHost: x\r\n\r\n");
    absl::SleepFor(absl::Milliseconds(100));
  }
  absl::SleepFor(absl::Milliseconds(100));
  last.Send("GET /last HTTP/1.1\r\nHost: x\r\n\r\n");
  go.Notify();
  EXPECT_THAT(last.ReadUntil("/last"), HasSubstr("200 OK"));
  EXPECT_EQ(handled, 0);
}

TEST(HttpServer, StopWaitsForHandlersThatRunAndDropsThoseThatDoNot) {
  HttpServerOptions options;
  options.handler_threads = 1;
  std::atomic<int> begun = 0, ended = 0;
  auto server = StartServer(
      [&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
        ++begun;
        absl::SleepFor(absl::Milliseconds(300));
        responder->Send(200, "text/plain", "late");
        ++ended;
      },
      options);
  RawClient first(server->port()), second(server->port());
  first.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  second.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  while (begun < 1) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(50));
  server->Stop();
  EXPECT_EQ(begun, 1);
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(second.ReadAll(), "");
}

TEST(HttpServer, HandlerThatThrowsEndsItsRequestAlone) {
  auto server = StartServer([](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    if (request.path == "/throw") throw std::runtime_error("a library's");
    Echo(std::move(request), std::move(responder));
  });
  RawClient client(server->port());
  client.Send("GET /throw HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("}}"), HasSubstr("HTTP/1.1 500"));
  client.Send("GET /b HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("/b "), HasSubstr("200 OK"));
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
