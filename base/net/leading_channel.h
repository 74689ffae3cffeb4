// A channel to whichever of several coordinators leads (server/standby).
#pragma once

#include <grpcpp/impl/channel_interface.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/net/api_keys.h"

namespace espalier {

// Reads "HOST:PORT[,HOST:PORT...]". Returns InvalidArgument that begins with `what` for an empty
// part.
absl::StatusOr<std::vector<std::string>> SplitAddresses(absl::string_view text,
                                                        absl::string_view what);

// Returns a channel to one address as KeyedChannel does, or to several: each call goes to the
// coordinator that leads. Which one that is, is looked up before the first call, and again after
// each call that ended with UNAVAILABLE or DEADLINE_EXCEEDED; such a call is not repeated. While
// none leads, calls get the error of one that stands by, or of the connection. Not empty.
std::shared_ptr<grpc::ChannelInterface> LeadingChannel(
    const std::vector<std::string>& addresses, const grpc::ChannelArguments& arguments,
    const ShownKey& key, const std::shared_ptr<grpc::ChannelCredentials>& credentials = nullptr);

}  // namespace espalier
