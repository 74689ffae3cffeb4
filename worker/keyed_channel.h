// gRPC between the daemons: calls with an API key, and transport security on both ends.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

#include "worker/transport_security.h"

namespace espalier {

// With TLS if tls.calls(), and then with tls.certificate() for who asks for one. Every call on it,
// of whatever service, shows `key` as "authorization: Bearer KEY"; empty: none.
std::shared_ptr<grpc::Channel> KeyedChannel(const std::string& address,
                                            const grpc::ChannelArguments& arguments,
                                            const std::string& key,
                                            const TransportSecurity& tls = TransportSecurity());

// With TLS if tls.serves().
std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const TransportSecurity& tls);

// What a call shows; empty if it shows nothing.
std::string AuthorizationOf(const grpc::ServerContext& context);

}  // namespace espalier
