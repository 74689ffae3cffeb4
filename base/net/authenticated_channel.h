// gRPC channels between the daemons, with API keys and TLS.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_interceptor.h>

#include <memory>
#include <string>
#include <vector>

#include "base/net/api_keys.h"
#include "base/net/transport_security.h"

namespace espalier {

// Returns channel credentials: TLS if tls.calls(), with tls's certificate for servers that request
// one. Connections made a second or more after a reload of `tls` use the new files. A thread
// watches for that, so share the credentials between channels. `tls` must outlive them.
std::shared_ptr<grpc::ChannelCredentials> CallersCredentials(const TransportSecurity& tls);

// Returns server credentials: TLS if tls.serves(). Reloads and lifetime are as above.
std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const TransportSecurity& tls);

// Returns a channel whose calls all carry `key` as "authorization: Bearer KEY" (null: none).
// Unencrypted without credentials. `interceptors` see its calls, too.
std::shared_ptr<grpc::Channel> KeyedChannel(
    const std::string& address, const grpc::ChannelArguments& arguments, ShownKey key,
    std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr,
    std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
        interceptors = {});

// Returns the authorization metadata of a call; empty if there is none.
std::string AuthorizationOf(const grpc::ServerContext& context);
// Returns the certificate (PEM) of the caller that the handshake has verified; empty if there is
// none.
std::string PeerCertificateOf(const grpc::ServerContext& context);

}  // namespace espalier
