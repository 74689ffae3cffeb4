// Malformed and hostile requests: each gets its status, and the server keeps serving others.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/http_server.h"
#include "server/http/testing/raw_client.h"

namespace espalier {
namespace {

using namespace std::string_literals;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr size_t kMaxBody = 100'000;

class HttpServerMalformedTest : public ::testing::Test {
 protected:
  void Start(HttpServerOptions options = {}, size_t max_body_bytes = kMaxBody) {
    options.max_body_bytes = max_body_bytes;
    auto server = HttpServer::Start(options, [](HttpRequest request,
                                                std::shared_ptr<HttpResponder> responder) {
      responder->Send(200, "text/plain", absl::StrCat("[", request.path, "][", request.body, "]"));
    });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // Returns everything until the server closes, as it does after an error.
  std::string Answer(const std::string& bytes) {
    RawClient client(server_->port());
    client.Send(bytes);
    return client.ReadAll();
  }

  void ExpectAlive() {
    EXPECT_THAT(Answer("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
                HasSubstr("[/health]"));
  }

  std::unique_ptr<HttpServer> server_;
};

std::string Post(const std::string& headers, const std::string& body) {
  return "POST /a HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n" + body;
}

TEST_F(HttpServerMalformedTest, MalformedRequestsAreRejectedAndClosed) {
  Start();
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  const struct {
    std::string request;
    int status;
  } cases[] = {
      // Request smuggling: the end of a body must be unambiguous.
      {Post("Content-Length: 5\r\n" + chunked, "0\r\n\r\n"), 400},
      {Post(chunked + "Content-Length: 5\r\n", "0\r\n\r\n"), 400},
      {Post("Content-Length: 5\r\nContent-Length: 6\r\n", "abcdef"), 400},
      {Post("Content-Length: 5, 6\r\n", "abcdef"), 400},
      {Post("Content-Length: +5\r\n", "abcde"), 400},
      {Post("Content-Length: -5\r\n", "abcde"), 400},
      {Post("Content-Length: 0x5\r\n", "abcde"), 400},
      {Post("Content-Length: 5 5\r\n", "abcde"), 400},
      {Post("Content-Length:\r\n", "abcde"), 400},
      {Post("Content-Length: 99999999999999999999\r\n", "abcde"), 400},
      {Post("Content-Length : 5\r\n", "abcde"), 400},
      {Post("Content-Length: 18446744073709551615\r\n", "abcde"), 413},
      {Post("Transfer-Encoding: gzip\r\n", "abcde"), 501},
      {Post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501},
      {Post("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), 501},
      {Post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400},
      {Post("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 501},
      {Post("Transfer-Encoding:\vchunked\r\n", "0\r\n\r\n"), 400},
      // Chunks.
      {Post(chunked, "ffffffffffffffff\r\nabc\r\n"), 413},
      {Post(chunked, "ffffffffffffffff1\r\nabc\r\n"), 400},
      {Post(chunked, "10000000000000000\r\nabc\r\n"), 400},
      {Post(chunked, "-1\r\nabc\r\n"), 400},
      {Post(chunked, "0x3\r\nabc\r\n0\r\n\r\n"), 400},
      {Post(chunked, "3\nabc\r\n0\r\n\r\n"), 400},
      {Post(chunked, "3\r\nabcd\r\n0\r\n\r\n"), 400},
      {Post(chunked, "3;" + std::string(1 << 20, 'e') + "\r\nabc\r\n0\r\n\r\n"), 400},
      {Post(chunked, "0\r\nTrailer: " + std::string(1 << 20, 't') + "\r\n\r\n"), 400},
      // More than a field may hold, but less than one read.
      {Post(chunked, "0\r\nTrailer: " + std::string(70'000, 't') + "\r\n\r\n"), 431},
      {Post(chunked, "10000\r\n" + std::string(0x10000, 'a') + "\r\n10000\r\n"), 413},
      // Lines.
      {"GET / HTTP/1.1\nHost: x\n\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\nX: y\r\n\r\n", 400},
      {"GET / HTTP/1.1\rHost: x\r\r", 400},
      {"GET / HTTP/1.1\r\nHost x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n"s, 400},
      {"GET / HTTP/1.1\r\nX\0: a\r\n\r\n"s, 400},
      {"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 400},
      {"GET / HTTP/1.10\r\nHost: x\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"GET\r\n\r\n", 400},
      {"\r\n\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"s + std::string(500, '\x7f'), 400},
      {std::string(1000, '\0'), 400},
      {std::string(1000, '\xff'), 400},
      // Paths.
      {"GET /a\0b HTTP/1.1\r\nHost: x\r\n\r\n"s, 400},
      {"GET ?a=b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /a\tb HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /" + std::string(20000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n", 431},
      {"GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(10'000'000, 'a') + "\r\n\r\n", 431},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.request.substr(0, 120));
    EXPECT_THAT(Answer(test.request), StartsWith(absl::StrCat("HTTP/1.1 ", test.status, " ")));
    ExpectAlive();
  }
}

TEST_F(HttpServerMalformedTest, ManySmallHeadersCountByBytes) {
  Start();
  std::string headers;
  for (int i = 0; headers.size() < 20000; ++i) absl::StrAppend(&headers, "X", i, ": y\r\n");
  EXPECT_THAT(Answer("GET / HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n"),
              StartsWith("HTTP/1.1 431 "));
  ExpectAlive();
}

// Read within the timeout; limited only by their total size.
TEST_F(HttpServerMalformedTest, OneByteChunksCountTowardsTheBodyLimit) {
  std::string body, chunks;
  for (int i = 0; i < 1'000'000; ++i) {
    body += static_cast<char>('a' + i % 26);
    absl::StrAppend(&chunks, "1\r\n", body.substr(body.size() - 1), "\r\n");
  }
  const std::string request =
      Post("Transfer-Encoding: chunked\r\nConnection: close\r\n", chunks + "0\r\n\r\n");
  Start({}, 2'000'000);
  const std::string answer = Answer(request);
  EXPECT_THAT(answer.substr(0, 100), StartsWith("HTTP/1.1 200 "));
  EXPECT_TRUE(absl::EndsWith(answer, absl::StrCat("[/a][", body, "]"))) << answer.size();
  Start({}, kMaxBody);
  EXPECT_THAT(Answer(request), StartsWith("HTTP/1.1 413 "));
  ExpectAlive();
}

TEST_F(HttpServerMalformedTest, RequestInPiecesOfOneByteIsARequest) {
  Start();
  RawClient client(server_->port());
  for (const char byte :
       Post("Transfer-Encoding: chunked\r\nConnection: close\r\n", "2\r\nhi\r\n0\r\n\r\n")) {
    ASSERT_TRUE(client.Send({&byte, 1}));
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_THAT(client.ReadAll(), HasSubstr("[/a][hi]"));
}

// Escapes are decoded, except those that a handler decodes within a segment.
TEST_F(HttpServerMalformedTest, PathsArriveDecodedAndNotNormalizedOtherwise) {
  Start();
  const auto answer = [this](const std::string& path) {
    return Answer("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  };
  for (const std::string path :
       {"/../../etc/passwd", "/..\\..\\windows", "//", "/\xc0\xaf..", "/\xff", "/%252e%252e",
        "/a%2Fb", "/a;b", "http:///a", "ftp://other/a", "*"}) {
    EXPECT_THAT(answer(path), HasSubstr("[" + path + "]"));
  }
  EXPECT_THAT(answer("/%2e%2e%2fetc%2fpasswd"), HasSubstr("[/..%2fetc%2fpasswd]"));
  EXPECT_THAT(answer("/%61%20%C3%A9"), HasSubstr("[/a \xC3\xA9]"));
  for (const char* path : {"/%00", "/%", "/%zz", "/%0d%0aX:"}) {
    EXPECT_THAT(answer(path), StartsWith("HTTP/1.1 400 ")) << path;
  }
}

TEST_F(HttpServerMalformedTest, TargetsMayNameSchemeAndHostAsTheyDoForProxies) {
  Start();
  const std::pair<const char*, const char*> cases[] = {{"http://other/health", "[/health]"},
                                                       {"HTTPS://other:443/a/b?c=/d", "[/a/b]"},
                                                       {"http://other", "[/]"},
                                                       {"http://other?c=d", "[/]"},
                                                       {"http://other//a", "[//a]"},
                                                       {"http://a/http://b/c", "[/http://b/c]"}};
  for (const auto& [target, path] : cases) {
    EXPECT_THAT(
        Answer(absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")),
        HasSubstr(path));
  }
}

TEST_F(HttpServerMalformedTest, CrossOriginRequestsGetNoCorsHeaders) {
  Start();
  for (const std::string headers :
       {"Host: evil.example\r\n", "Host: x\r\nOrigin: http://evil.example\r\n",
        "Host: x\r\nOrigin: null\r\nAccess-Control-Request-Method: POST\r\n"}) {
    const std::string answer =
        Answer("GET /health HTTP/1.1\r\n" + headers + "Connection: close\r\n\r\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answer, Not(HasSubstr("Access-Control")));
  }
}

TEST_F(HttpServerMalformedTest, RequestThatTakesTooLongIsToldSo) {
  HttpServerOptions options;
  options.read_timeout = absl::Milliseconds(300);
  Start(options);
  const std::string whole = Post("Content-Length: 200\r\n", std::string(200, 'b'));
  const size_t header = whole.find("\r\n\r\n");
  for (const size_t first : {size_t{1}, size_t{8}, header, header + 50}) {
    for (const bool drips : {false, true}) {
      SCOPED_TRACE(absl::StrCat(first, " bytes at once", drips ? ", then one by one" : ""));
      RawClient client(server_->port());
      const absl::Time start = absl::Now();
      client.Send(whole.substr(0, first));
      const absl::Time end = start + absl::Milliseconds(400);
      for (size_t i = first; drips && absl::Now() < end; ++i) {
        client.Send(whole.substr(i, 1));
        absl::SleepFor(absl::Milliseconds(40));
      }
      const std::string answer = client.ReadAll();
      EXPECT_THAT(answer, StartsWith("HTTP/1.1 408 "));
      EXPECT_THAT(answer, HasSubstr("300ms"));
      EXPECT_GE(absl::Now() - start, options.read_timeout);
      EXPECT_LT(absl::Now() - start, absl::Seconds(5));
    }
  }
  ExpectAlive();
}

TEST_F(HttpServerMalformedTest, ConnectionWithoutARequestIsClosedSilently) {
  HttpServerOptions options;
  options.idle_timeout = absl::Milliseconds(200);
  Start(options);
  EXPECT_EQ(Answer(""), "");
  RawClient client(server_->port());
  client.Send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), HasSubstr("[/a]"));
  ExpectAlive();
}

TEST_F(HttpServerMalformedTest, ManyConnectionsThatSendNothingLeaveRoomForOthers) {
  Start();
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 200; ++i) {
    idle.push_back(std::make_unique<RawClient>(server_->port()));
    idle.back()->Send("GET / HT");
  }
  ExpectAlive();
}

TEST_F(HttpServerMalformedTest, ConnectionsBeyondTheLimitAreClosed) {
  HttpServerOptions options;
  options.max_connections = 3;
  Start(options);
  std::vector<std::unique_ptr<RawClient>> held;
  for (int i = 0; i < 3; ++i) {
    held.push_back(std::make_unique<RawClient>(server_->port()));
    held.back()->Send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_THAT(held.back()->ReadUntil("[/a]"), HasSubstr("200"));
  }
  EXPECT_EQ(Answer("GET /a HTTP/1.1\r\nHost: x\r\n\r\n"), "");
  held.clear();
  absl::SleepFor(absl::Milliseconds(100));
  ExpectAlive();
}

}  // namespace
}  // namespace espalier
