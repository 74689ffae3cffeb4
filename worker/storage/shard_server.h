// The Shards service (espalier/v1/shards.proto) of this worker, on a port of its own: unlike the
// Worker service it is called by other workers.
#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "espalier/v1/shards.grpc.pb.h"
#include "worker/storage/shard_copies.h"

namespace espalier {

// For which the service's certificate is.
inline constexpr char kShardsHost[] = "shards";

struct ShardServerOptions {
  std::string listen_host;  // the port is a free one
  bool encrypted = true;
  std::string call_key;           // of the worker (ShardKey)
  ShardCopies* copies = nullptr;  // must outlive the server
};

class ShardServer {
 public:
  // Returns Unavailable if it cannot listen there; Internal if OpenSSL makes no certificate.
  static absl::StatusOr<std::unique_ptr<ShardServer>> Start(const ShardServerOptions& options);
  ~ShardServer();  // ends all calls

  int port() const { return port_; }
  // PEM, made for this process; empty without encryption.
  const std::string& certificate() const { return certificate_; }

 private:
  ShardServer() = default;

  std::unique_ptr<v1::Shards::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string certificate_;
  int port_ = 0;
};

}  // namespace espalier
