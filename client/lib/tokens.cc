// Tokens. Calls are not repeated: a token whose answer was lost would exist unknown to anybody.
#include <utility>

#include "client/lib/client.h"
#include "client/lib/client_impl.h"
#include "espalier/v1/access.grpc.pb.h"

namespace espalier {

absl::StatusOr<v1::CreateTokenReply> Client::CreateToken(const v1::CreateTokenRequest& request) {
  grpc::ClientContext context;
  impl_->Prepare(&context, impl_->options.call_timeout);
  v1::CreateTokenReply reply;
  const grpc::Status status =
      v1::Access::NewStub(impl_->channel)->CreateToken(&context, request, &reply);
  if (!status.ok()) return impl_->FromGrpc(status);
  return reply;
}

absl::StatusOr<std::vector<v1::AccessToken>> Client::ListTokens() {
  grpc::ClientContext context;
  impl_->Prepare(&context, impl_->options.call_timeout);
  v1::ListTokensReply reply;
  const grpc::Status status =
      v1::Access::NewStub(impl_->channel)->ListTokens(&context, v1::ListTokensRequest(), &reply);
  if (!status.ok()) return impl_->FromGrpc(status);
  return std::vector<v1::AccessToken>(reply.tokens().begin(), reply.tokens().end());
}

absl::StatusOr<v1::AccessToken> Client::RevokeToken(const std::string& id, bool certificates) {
  grpc::ClientContext context;
  impl_->Prepare(&context, impl_->options.call_timeout);
  v1::RevokeTokenRequest request;
  request.set_id(id);
  request.set_certificates(certificates);
  v1::RevokeTokenReply reply;
  const grpc::Status status =
      v1::Access::NewStub(impl_->channel)->RevokeToken(&context, request, &reply);
  if (!status.ok()) return impl_->FromGrpc(status);
  return std::move(*reply.mutable_token());
}

}  // namespace espalier
