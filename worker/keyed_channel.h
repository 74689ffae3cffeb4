// gRPC calls between the daemons, each with an API key.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

namespace espalier {

// A channel without transport security (loopback, or behind --insecure). Every call on it, of
// whatever service, shows `key` as "authorization: Bearer KEY"; empty: none.
std::shared_ptr<grpc::Channel> KeyedChannel(const std::string& address,
                                            const grpc::ChannelArguments& arguments,
                                            const std::string& key);

// What a call shows; empty if it shows nothing.
std::string AuthorizationOf(const grpc::ServerContext& context);

}  // namespace espalier
