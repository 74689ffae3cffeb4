// Fuzzes HTTP/1.1 connections: the server answers or rejects any bytes, then closes; the requests
// that it parses do not depend on how the bytes are split. The first byte selects the split.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/http/http_server.h"
#include "server/http/testing/raw_client.h"

namespace {

using namespace espalier;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

// A server that records its requests.
class Subject {
 public:
  Subject() {
    HttpServerOptions options;
    options.max_header_bytes = 1024;
    options.max_body_bytes = 1024;
    // Runs in request order, before the client's half-close is seen.
    options.quick = [](const HttpRequest&) { return true; };
    auto server = HttpServer::Start(
        options, [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
          Note(request);
          responder->Send(200, "text/plain", std::move(request.body));
        });
    if (!server.ok()) Fail(std::string(server.status().message()));
    server_ = *std::move(server);
  }

  // Returns the requests parsed from `bytes`, sent in pieces of this size.
  std::string Ask(absl::string_view bytes, size_t piece) {
    {
      absl::MutexLock lock(&mutex_);
      asked_.clear();
    }
    RawClient client(server_->port());
    if (!client.connected()) Fail("no connection");
    while (!bytes.empty() && client.Send(bytes.substr(0, piece))) {
      bytes.remove_prefix(std::min(piece, bytes.size()));
    }
    client.CloseHalf();
    const std::string answer = client.ReadAll();
    if (client.timed_out()) Fail("the server does not close");
    if (!answer.empty() && !absl::StartsWith(answer, "HTTP/1.")) Fail("no HTTP: " + answer);
    client.Abort();
    absl::MutexLock lock(&mutex_);
    return asked_;
  }

 private:
  void Note(const HttpRequest& request) {
    if (request.method.empty() || request.path.empty()) Fail("a request without its first line");
    if (request.body.size() > 1024) Fail("a body above the limit");
    absl::MutexLock lock(&mutex_);
    absl::StrAppend(&asked_, request.method, " ", request.path, "?", request.query, "\n");
    for (const auto& [name, value] : request.headers) {
      absl::StrAppend(&asked_, name, ": ", value, "\n");
    }
    absl::StrAppend(&asked_, request.body.size(), "\n", request.body, "\n");
  }

  absl::Mutex mutex_;
  std::string asked_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<HttpServer> server_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static Subject subject;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string whole = subject.Ask(bytes, std::max<size_t>(1, bytes.size()));
  const std::string cut = subject.Ask(bytes, 1 + data[0] % 64);
  if (whole != cut) Fail(absl::StrCat("whole:\n", whole, "\ncut:\n", cut));
  return 0;
}
