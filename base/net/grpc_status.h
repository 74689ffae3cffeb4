// Between absl::Status and grpc::Status: the codes are the same numbers. And the limits on messages
// that every channel and server of the worker has.
#pragma once

#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace espalier {

constexpr int kMaxMessageBytes = 64 << 20;

inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  // Messages travel in headers, which are limited to 8 KiB.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message().substr(0, 4000)));
}

inline absl::Status FromGrpc(const grpc::Status& status, const std::string& place) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      place + ": " + status.error_message());
}

inline grpc::ChannelArguments ChannelLimits() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // gRPC's own, up to two minutes, would keep workers away from a coordinator that is back.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  return arguments;
}

}  // namespace espalier
