#include "worker/keyed_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_interceptor.h>

#include <utility>
#include <vector>

namespace espalier {
namespace {

using grpc::experimental::InterceptionHookPoints;

// Call credentials would need TLS, which a channel on loopback need not have.
class KeyInterceptor : public grpc::experimental::Interceptor {
 public:
  explicit KeyInterceptor(const std::string* header) : header_(header) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->insert({"authorization", *header_});
    }
    methods->Proceed();
  }

 private:
  const std::string* const header_;
};

class KeyInterceptorFactory : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit KeyInterceptorFactory(const std::string& key) : header_("Bearer " + key) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new KeyInterceptor(&header_);  // gRPC's to delete; the channel keeps the factory
  }

 private:
  const std::string header_;
};

}  // namespace

std::shared_ptr<grpc::Channel> KeyedChannel(const std::string& address,
                                            const grpc::ChannelArguments& arguments,
                                            const std::string& key, const TransportSecurity& tls) {
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!key.empty()) interceptors.push_back(std::make_unique<KeyInterceptorFactory>(key));
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (tls.calls()) credentials = grpc::SslCredentials({tls.ca(), tls.key(), tls.certificate()});
  return grpc::experimental::CreateCustomChannelWithInterceptors(address, credentials, arguments,
                                                                 std::move(interceptors));
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const TransportSecurity& tls) {
  if (!tls.serves()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      tls.client_ca().empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                              : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = tls.client_ca();
  options.pem_key_cert_pairs = {{tls.key(), tls.certificate()}};
  return grpc::SslServerCredentials(options);
}

std::string AuthorizationOf(const grpc::ServerContext& context) {
  const auto found = context.client_metadata().find("authorization");
  if (found == context.client_metadata().end()) return "";
  return std::string(found->second.data(), found->second.size());
}

}  // namespace espalier
