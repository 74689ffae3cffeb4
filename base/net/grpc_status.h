// Conversion between absl::Status and grpc::Status, whose codes are the same numbers, and the
// limits of the channels and servers of workers.
#pragma once

#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace espalier {

constexpr int kMaxMessageBytes = 64 << 20;

// Truncates the message to fit into trailing metadata and replaces what is not valid UTF-8. An
// Unavailable status gets details, which show that the server did answer.
grpc::Status ToGrpc(const absl::Status& status);

// A `place` that is not empty comes before the message: "PLACE: MESSAGE".
absl::Status FromGrpc(const grpc::Status& status, absl::string_view place = "");

// Arguments with kMaxMessageBytes in both directions, a reconnection backoff of at most 2 s, and
// names that are looked up again after 1 s.
grpc::ChannelArguments ChannelLimits();

}  // namespace espalier
