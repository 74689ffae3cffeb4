// A client may close its side when it has sent its request, and wait for the answer.
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "server/http/testing/raw_client.h"
#include "server/http/testing/start_server.h"

namespace espalier {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kSoon = absl::Seconds(10);
// Long enough for the server to see the close and to probe.
constexpr absl::Duration kLate = absl::Milliseconds(700);
constexpr char kGet[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

// Keeps the responder of a request.
class Kept {
 public:
  HttpHandler Handler() {
    return [this](HttpRequest, std::shared_ptr<HttpResponder> responder) {
      responder->OnClose([this] { closed_.Notify(); });
      responder_ = std::move(responder);
      begun_.Notify();
    };
  }
  HttpResponder& Await() {
    begun_.WaitForNotification();
    return *responder_;
  }
  absl::Notification& closed() { return closed_; }

 private:
  absl::Notification begun_, closed_;
  std::shared_ptr<HttpResponder> responder_;
};

TEST(HttpServerHalfClose, IsAnsweredAtOnce) {
  auto server = StartServer(Echo);
  for (const char* request :
       {kGet, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "GET / HTTP/1.0\r\n\r\n"}) {
    RawClient client(server->port());
    client.Send(request);
    client.CloseHalf();
    EXPECT_THAT(client.ReadAll(), HasSubstr("200 OK")) << request;
  }
  RawClient pipelined(server->port());
  pipelined.Send("GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n");
  pipelined.CloseHalf();
  const std::string both = pipelined.ReadAll();
  EXPECT_THAT(both, HasSubstr("GET /a "));
  EXPECT_THAT(both, EndsWith("GET /b "));
}

TEST(HttpServerHalfClose, IsAnsweredLate) {
  for (const bool old : {false, true}) {
    Kept kept;
    auto server = StartServer(kept.Handler());
    RawClient client(server->port());
    client.Send(old ? "GET / HTTP/1.0\r\n\r\n" : kGet);
    client.CloseHalf();
    HttpResponder& responder = kept.Await();
    absl::SleepFor(kLate);
    EXPECT_FALSE(kept.closed().HasBeenNotified());
    responder.Send(200, "text/plain", "late");
    std::string all = client.ReadAll();
    // Interim answers (RFC 9110, 15.2) tell that the client is there; HTTP/1.0 has none.
    const std::string interim = "HTTP/1.1 100 Continue\r\n\r\n";
    EXPECT_EQ(all.find(interim) == 0, !old) << all;
    if (!old) all = all.substr(interim.size());
    EXPECT_THAT(all, StartsWith(old ? "HTTP/1.0 200 OK\r\n" : "HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(all, EndsWith("late"));
  }
}

TEST(HttpServerHalfClose, StreamsGoOn) {
  Kept kept;
  auto server = StartServer(kept.Handler());
  RawClient client(server->port());
  client.Send(kGet);
  HttpResponder& responder = kept.Await();
  responder.StartStream(200, "text/event-stream");
  responder.Write("data: 1\n\n");
  client.CloseHalf();
  absl::SleepFor(kLate);
  responder.Write("data: 2\n\n");
  responder.End();
  const std::string all = client.ReadAll();
  EXPECT_FALSE(kept.closed().HasBeenNotified());
  // A comment, which clients of event streams ignore.
  EXPECT_THAT(all, HasSubstr("data: 1\n\n\r\n3\r\n:\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"));
}

// To the server it looks the same at first.
TEST(HttpServerHalfClose, ClientThatIsGoneIsFoundOut) {
  for (const bool streams : {false, true}) {
    Kept kept;
    auto server = StartServer(kept.Handler());
    RawClient client(server->port());
    client.Send(kGet);
    HttpResponder& responder = kept.Await();
    if (streams) {
      responder.StartStream(200, "text/event-stream");
      responder.Write("data: 1\n\n");
      client.ReadUntil("data: 1");
    }
    // First it only closes its side.
    client.CloseHalf();
    absl::SleepFor(kLate);
    EXPECT_FALSE(kept.closed().HasBeenNotified());
    const absl::Time gone = absl::Now();
    client.Close();
    EXPECT_TRUE(kept.closed().WaitForNotificationWithTimeout(kSoon)) << streams;
    EXPECT_LT(absl::Now() - gone, absl::Seconds(8));
  }
}

TEST(HttpServerHalfClose, ClientThatClosesIsFoundOutSoon) {
  Kept kept;
  auto server = StartServer(kept.Handler());
  RawClient client(server->port());
  client.Send(kGet);
  kept.Await();
  client.Close();
  EXPECT_TRUE(kept.closed().WaitForNotificationWithTimeout(absl::Seconds(3)));
}

}  // namespace
}  // namespace espalier
