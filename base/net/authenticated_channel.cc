#include "base/net/authenticated_channel.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/grpc_library.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/client_interceptor.h>

#include <utility>
#include <vector>

namespace espalier {
namespace {

using grpc::experimental::InterceptionHookPoints;

// An interceptor: call credentials need TLS, which a loopback channel may lack.
class KeyInterceptor : public grpc::experimental::Interceptor {
 public:
  explicit KeyInterceptor(const std::string& key) : header_("Bearer " + key) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->insert({"authorization", header_});
    }
    methods->Proceed();
  }

 private:
  const std::string header_;
};

class KeyInterceptorFactory : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit KeyInterceptorFactory(ShownKey key) : key_(std::move(key)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new KeyInterceptor(key_());  // owned by gRPC
  }

 private:
  const ShownKey key_;
};

constexpr unsigned kPollSeconds = 1;

// gRPC reloads certificates from files only, without validating them: hence in-memory files of
// validated contents.
std::shared_ptr<grpc::experimental::CertificateProviderInterface> Watched(
    const std::string& identity, const std::string& roots) {
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(identity, identity,
                                                                              roots, kPollSeconds);
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> CallersCredentials(const TransportSecurity& tls) {
  if (!tls.calls()) return grpc::InsecureChannelCredentials();
  const grpc::GrpcLibraryCodegen library;  // initializes gRPC, which the watcher needs
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watched(tls.identity_path(), tls.ca_path()));
  options.watch_root_certs();
  if (tls.serves()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const TransportSecurity& tls) {
  if (!tls.serves()) return grpc::InsecureServerCredentials();
  const grpc::GrpcLibraryCodegen library;
  grpc::experimental::TlsServerCredentialsOptions options(
      Watched(tls.identity_path(), tls.client_ca_path()));
  options.watch_identity_key_cert_pairs();
  if (!tls.client_ca_path().empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(tls.client_certificates_optional()
                                      ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
                                      : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::Channel> KeyedChannel(
    const std::string& address, const grpc::ChannelArguments& arguments, ShownKey key,
    std::shared_ptr<grpc::ChannelCredentials> credentials,
    std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
        interceptors) {
  if (key) interceptors.push_back(std::make_unique<KeyInterceptorFactory>(std::move(key)));
  if (credentials == nullptr) credentials = grpc::InsecureChannelCredentials();
  return grpc::experimental::CreateCustomChannelWithInterceptors(address, credentials, arguments,
                                                                 std::move(interceptors));
}

std::string AuthorizationOf(const grpc::ServerContext& context) {
  const auto found = context.client_metadata().find("authorization");
  if (found == context.client_metadata().end()) return "";
  return std::string(found->second.data(), found->second.size());
}

std::string PeerCertificateOf(const grpc::ServerContext& context) {
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  if (peer == nullptr || !peer->IsPeerAuthenticated()) return "";
  const std::vector<grpc::string_ref> found =
      peer->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return found.size() == 1 ? std::string(found[0].data(), found[0].size()) : "";
}

}  // namespace espalier
