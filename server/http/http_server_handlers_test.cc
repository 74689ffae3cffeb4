// Tests the threads of handlers: how many requests wait for them, and what ends with them.
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

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

using ::testing::HasSubstr;

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
  absl::SleepFor(absl::Seconds(2));  // until it is known to be gone, and not half-closed
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

}  // namespace
}  // namespace espalier
