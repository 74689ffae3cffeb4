#include "server/grpc_limits.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

namespace espalier {
namespace {

// Extra threads for calls that are not counted: workers', probes, cancellations.
constexpr int kSpareThreads = 256;
// A vanished peer holds its calls' threads until keepalive detects it.
constexpr absl::Duration kKeepalive = absl::Seconds(60), kKeepaliveTimeout = absl::Seconds(20);
// Minimum interval of keepalive pings by clients that wait for a long answer.
constexpr absl::Duration kPingInterval = absl::Seconds(10);
constexpr int kPingStrikes = 2;

class ReflectionRemoval : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(),
                                  [](const std::unique_ptr<grpc::ServerBuilderPlugin>& plugin) {
                                    return plugin->name() == "proto_server_reflection";
                                  }),
                   plugins->end());
  }
};

int Millis(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

}  // namespace

void SetGrpcLimits(const GrpcLimits& limits, grpc::ServerBuilder* builder) {
  grpc::ResourceQuota quota("espalier");
  quota.Resize(static_cast<size_t>(limits.memory_bytes));
  // The library uses up to two polling threads per core, and aborts if it cannot have them.
  const int pollers = 2 * static_cast<int>(std::thread::hardware_concurrency());
  quota.SetMaxThreads(limits.max_calls + kSpareThreads + pollers);
  builder->SetResourceQuota(quota);
  // Compression is off: the library decompresses a whole message before it checks the limit, so a
  // megabyte may become a gigabyte. Clients that compress get UNIMPLEMENTED.
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  const std::pair<const char*, int> arguments[] = {
      {GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0},
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.max_streams},
      {GRPC_ARG_MAX_METADATA_SIZE, limits.max_metadata_bytes},
      {GRPC_ARG_KEEPALIVE_TIME_MS, Millis(kKeepalive)},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(kKeepaliveTimeout)},
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, Millis(kPingInterval)},
      {GRPC_ARG_HTTP2_MAX_PING_STRIKES, kPingStrikes}};
  for (const auto& [name, value] : arguments) builder->AddChannelArgument(name, value);
}

std::unique_ptr<grpc::ServerBuilderOption> WithoutReflection() {
  return std::make_unique<ReflectionRemoval>();
}

}  // namespace espalier
