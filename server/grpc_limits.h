// What callers may take of the coordinator's gRPC server.
#pragma once

#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/server_builder.h>

#include <cstdint>
#include <memory>

#include "absl/time/time.h"

namespace espalier {

// Resource bounds for gRPC callers. Beyond them a call gets RESOURCE_EXHAUSTED; streams beyond
// max_streams wait in the client's library.
struct GrpcLimits {
  // concurrent calls of all callers, one thread each; calls by workers, probes and cancellations
  // are not counted
  int max_calls = 512;
  int max_streams = 1024;                   // per connection
  int64_t memory_bytes = int64_t{1} << 30;  // for messages in transit
  int max_metadata_bytes = 16 << 10;        // per call
  // Streams are cancelled after the client has neither sent nor read anything for this long.
  absl::Duration idle = absl::Minutes(5);
};

void SetGrpcLimits(const GrpcLimits& limits, grpc::ServerBuilder* builder);

// Removes the reflection service, which the gRPC library adds to every server of the process: it
// would list all methods to everyone, and no interceptor protects it.
std::unique_ptr<grpc::ServerBuilderOption> WithoutReflection();

}  // namespace espalier
