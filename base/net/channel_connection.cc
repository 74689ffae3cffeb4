#include "base/net/channel_connection.h"

#include <chrono>

namespace espalier {

bool WaitForConnection(grpc::Channel& channel, absl::Duration timeout) {
  if (channel.GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY) return true;
  return channel.WaitForConnected(std::chrono::system_clock::now() +
                                  absl::ToChronoMilliseconds(timeout));
}

}  // namespace espalier
