// gRPC between the daemons: calls with an API key, and transport security on both ends.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

#include "base/net/api_keys.h"
#include "base/net/transport_security.h"

namespace espalier {

// With TLS if tls.calls(), and then with tls's certificate for who asks for one. Connections made a
// second or more after a reload of `tls` are by what it read. A thread looks after that: share them
// between channels. `tls` has to outlive them.
std::shared_ptr<grpc::ChannelCredentials> CallersCredentials(const TransportSecurity& tls);

// Likewise, with TLS if tls.serves().
std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const TransportSecurity& tls);

// Every call on it, of whatever service, shows `key` as "authorization: Bearer KEY"; null: none.
// Without credentials in the clear.
std::shared_ptr<grpc::Channel> KeyedChannel(
    const std::string& address, const grpc::ChannelArguments& arguments, ShownKey key,
    std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr);

// What a call shows; empty if it shows nothing.
std::string AuthorizationOf(const grpc::ServerContext& context);

}  // namespace espalier
