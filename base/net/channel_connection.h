// Whether a channel is connected, before a call is made.
#pragma once

#include <grpcpp/channel.h>

#include "absl/time/time.h"

namespace espalier {

// Waits until the channel is connected; false: not within `timeout`. A blocking call on a channel
// that could not connect fails at once, and then nobody looks whether the next attempt has
// succeeded: a server that has come back would be found only after seconds.
bool WaitForConnection(grpc::Channel& channel, absl::Duration timeout);

}  // namespace espalier
