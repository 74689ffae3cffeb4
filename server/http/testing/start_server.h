// Test helpers: starts a server, and a handler that repeats requests.
#pragma once

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/http/http_server.h"

namespace espalier {

inline std::unique_ptr<HttpServer> StartServer(HttpHandler handler,
                                               HttpServerOptions options = {}) {
  auto server = HttpServer::Start(std::move(options), std::move(handler));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

// Answers with the request's method, path and body.
inline void Echo(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
  responder->Send(200, "text/plain",
                  absl::StrCat(request.method, " ", request.path, " ", request.body));
}

}  // namespace espalier
