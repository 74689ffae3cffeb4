// Clients can distinguish a complete stream from a broken one.
#include <algorithm>
#include <string>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/http_server.h"
#include "server/http/testing/raw_client.h"

namespace espalier {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kSoon = absl::Seconds(10);
constexpr char kLastChunk[] = "\r\n0\r\n\r\n";

// Regression: when the writer was lost, half an answer looked complete.
TEST(HttpServerStream, UnendedStreamIsNotTerminated) {
  for (const bool ends : {true, false}) {
    absl::Notification closed;
    auto server = HttpServer::Start({}, [&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
      responder->OnClose([&] { closed.Notify(); });
      responder->StartStream(200, "text/event-stream");
      responder->Write("data: half\n\n");
      if (ends) responder->End();
    });
    ASSERT_TRUE(server.ok()) << server.status();
    RawClient client((*server)->port());
    client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    if (ends) {
      EXPECT_THAT(client.ReadUntil(kLastChunk), EndsWith(kLastChunk));
      continue;
    }
    const std::string all = client.ReadAll();
    EXPECT_FALSE(client.timed_out()) << "the connection is closed";
    EXPECT_THAT(all, HasSubstr("data: half\n\n"));
    EXPECT_THAT(all, Not(HasSubstr(kLastChunk)));
    EXPECT_TRUE(closed.WaitForNotificationWithTimeout(kSoon));
  }
}

// Parts queued in quick succession do not count as unread. A quick handler, so that nothing is sent
// before it returns.
TEST(HttpServerStream, SmallPartsMayComeRightBehindALargeOne) {
  constexpr size_t kSize = 5 << 20;
  HttpServerOptions options;
  options.max_unsent_bytes = 1 << 20;
  options.quick = [](const HttpRequest&) { return true; };
  auto server =
      HttpServer::Start(options, [](HttpRequest, std::shared_ptr<HttpResponder> responder) {
        responder->StartStream(200, "text/plain");
        responder->Write("first");
        responder->Write(std::string(kSize, '#'));
        for (int i = 0; i < 10; ++i) responder->Write("last");
        responder->End();
      });
  ASSERT_TRUE(server.ok()) << server.status();
  RawClient client((*server)->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string all = client.ReadAll();
  EXPECT_EQ(std::count(all.begin(), all.end(), '#'), kSize);
  EXPECT_THAT(all.substr(all.size() - std::min<size_t>(all.size(), 20)), EndsWith(kLastChunk));
}

}  // namespace
}  // namespace espalier
