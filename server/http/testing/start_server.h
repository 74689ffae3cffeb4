// Test helper: starts a server.
#pragma once

#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "server/http/http_server.h"

namespace espalier {

inline std::unique_ptr<HttpServer> StartServer(HttpHandler handler,
                                               HttpServerOptions options = {}) {
  auto server = HttpServer::Start(std::move(options), std::move(handler));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

}  // namespace espalier
