// Which requests a stopping server must wait for.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/http_server.h"
#include "server/http/testing/raw_client.h"
#include "server/http/testing/start_server.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr char kGet[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

bool AwaitOpen(const HttpServer& server, int open) {
  for (const absl::Time end = absl::Now() + absl::Seconds(10); absl::Now() < end;) {
    if (server.OpenRequests() == open) return true;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return false;
}

TEST(HttpServerOpenRequests, ARequestIsOpenUntilItIsAnswered) {
  absl::Notification answer;
  auto server = StartServer([&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    answer.WaitForNotification();
    responder->Send(200, "text/plain", "done");
  });
  RawClient client(server->port()), idle(server->port());
  EXPECT_EQ(server->OpenRequests(), 0);
  client.Send(kGet);
  EXPECT_TRUE(AwaitOpen(*server, 1));
  answer.Notify();
  EXPECT_THAT(client.ReadUntil("done"), HasSubstr("200 OK"));
  EXPECT_TRUE(AwaitOpen(*server, 0)) << "the connection stays";
}

TEST(HttpServerOpenRequests, OneThatWaitsForAThreadIsOpen) {
  absl::Notification answer;
  HttpServerOptions options;
  options.handler_threads = 1;
  auto server = StartServer(
      [&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
        answer.WaitForNotification();
        responder->Send(200, "text/plain", "done");
      },
      options);
  RawClient first(server->port()), second(server->port());
  first.Send(kGet);
  second.Send(kGet);
  EXPECT_TRUE(AwaitOpen(*server, 2));
  answer.Notify();
  second.ReadUntil("done");
  EXPECT_TRUE(AwaitOpen(*server, 0));
}

TEST(HttpServerOpenRequests, AnAnswerIsOpenWhileItsClientReads) {
  constexpr size_t kSize = 24 << 20;
  absl::Notification sent;
  auto server = StartServer([&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->Send(200, "text/plain", std::string(kSize, 'x'));
    sent.Notify();
  });
  RawClient client(server->port(), /*receive_buffer=*/64 << 10);
  client.Send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  sent.WaitForNotification();
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(server->OpenRequests(), 1);
  EXPECT_GT(client.ReadAll().size(), kSize);
  EXPECT_TRUE(AwaitOpen(*server, 0));
}

TEST(HttpServerOpenRequests, AStreamIsOpenUntilItsEnd) {
  std::shared_ptr<HttpResponder> stream;
  absl::Notification begun;
  auto server = StartServer([&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->StartStream(200, "text/plain");
    responder->Write("first");
    stream = std::move(responder);
    begun.Notify();
  });
  RawClient client(server->port());
  client.Send(kGet);
  begun.WaitForNotification();
  client.ReadUntil("first");
  EXPECT_EQ(server->OpenRequests(), 1);
  stream->End();
  client.ReadUntil("0\r\n\r\n");
  EXPECT_TRUE(AwaitOpen(*server, 0));
}

TEST(HttpServerOpenRequests, DisconnectedRequestIsNotOpen) {
  std::shared_ptr<HttpResponder> unanswered;
  auto server = StartServer([&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    unanswered = std::move(responder);
  });
  RawClient client(server->port());
  client.Send(kGet);
  EXPECT_TRUE(AwaitOpen(*server, 1));
  client.Close();
  EXPECT_TRUE(AwaitOpen(*server, 0));
}

}  // namespace
}  // namespace espalier
