#include "server/store/etcd/etcd_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/net/authenticated_channel.h"
#include "base/net/channel_connection.h"
#include "third_party/etcd/rpc.grpc.pb.h"

namespace espalier {
namespace {

constexpr char kTokenHeader[] = "token";
// For one endpoint, before the next one is tried.
constexpr absl::Duration kConnect = absl::Milliseconds(500);

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& endpoint,
                                         std::shared_ptr<grpc::ChannelCredentials> credentials) {
  grpc::ChannelArguments arguments;
  // A page of a log may be larger than gRPC's 4 MiB.
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return KeyedChannel(endpoint, arguments, nullptr, std::move(credentials));
}

// etcd's words, with a remedy where there is one.
absl::Status Explained(const grpc::Status& status, const std::string& endpoint) {
  const std::string& text = status.error_message();
  const std::string place = absl::StrCat("etcd at ", endpoint, ": ", text);
  if (absl::StrContains(text, "database space exceeded")) {
    return absl::ResourceExhaustedError(absl::StrCat(
        place,
        "; compact its history (etcdctl compact), defragment it (etcdctl defrag), clear the alarm "
        "(etcdctl alarm disarm), and let it compact by itself (--auto-compaction-retention)"));
  }
  if (absl::StrContains(text, "authentication failed") ||
      absl::StrContains(text, "user name is empty")) {
    return absl::UnauthenticatedError(
        absl::StrCat(place, "; give --etcd-user and --etcd-password-file as etcd knows them"));
  }
  if (absl::StrContains(text, "permission denied")) {
    return absl::PermissionDeniedError(
        absl::StrCat(place, "; the user needs a role with readwrite permission for the prefix"));
  }
  if (absl::StrContains(text, "too many requests")) return absl::UnavailableError(place);
  switch (status.error_code()) {
    // Without an answer nobody knows what etcd did, whatever gRPC calls it.
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::INTERNAL:
      return absl::UnavailableError(place);
    default:
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()), place);
  }
}

}  // namespace

struct EtcdClient::Endpoint {
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<etcdserverpb::KV::Stub> kv;
  std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  std::unique_ptr<etcdserverpb::Auth::Stub> auth;
};

EtcdClient::EtcdClient(EtcdClientOptions options) : options_(std::move(options)) {
  const auto credentials = CallersCredentials(options_.tls);
  for (const std::string& address : options_.endpoints) {
    const std::shared_ptr<grpc::Channel> channel = ChannelTo(address, credentials);
    endpoints_.push_back(std::make_unique<Endpoint>(
        Endpoint{address, channel, etcdserverpb::KV::NewStub(channel),
                 etcdserverpb::Lease::NewStub(channel), etcdserverpb::Auth::NewStub(channel)}));
  }
}

EtcdClient::~EtcdClient() = default;

EtcdClient::Endpoint& EtcdClient::Current() {
  absl::MutexLock lock(&mutex_);
  return *endpoints_[current_];
}

void EtcdClient::Leave(const Endpoint& failed) {
  absl::MutexLock lock(&mutex_);
  if (endpoints_[current_].get() == &failed) current_ = (current_ + 1) % endpoints_.size();
}

void EtcdClient::ForgetToken(const std::string& token) {
  absl::MutexLock lock(&mutex_);
  if (token_ == token) token_.clear();
}

absl::StatusOr<std::string> EtcdClient::Token(Endpoint& endpoint) {
  {
    absl::MutexLock lock(&mutex_);
    if (!token_.empty()) return token_;
  }
  etcdserverpb::AuthenticateRequest request;
  request.set_name(options_.user);
  request.set_password(options_.password);
  etcdserverpb::AuthenticateResponse reply;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + options_.call_timeout));
  const grpc::Status status = endpoint.auth->Authenticate(&context, request, &reply);
  // The user may be given before etcd's authentication is turned on.
  if (absl::StrContains(status.error_message(), "authentication is not enabled")) {
    return std::string();
  }
  if (!status.ok()) return Explained(status, endpoint.address);
  absl::MutexLock lock(&mutex_);
  token_ = reply.token();
  return token_;
}

template <typename Body>
absl::Status EtcdClient::Run(Body body) {
  Endpoint& endpoint = Current();
  if (!WaitForConnection(*endpoint.channel, std::min(kConnect, options_.call_timeout))) {
    Leave(endpoint);
    return absl::UnavailableError(absl::StrCat(
        "etcd at ", endpoint.address, " cannot be reached",
        options_.tls.calls() ? "; if it asks its clients for certificates: --etcd-cert, --etcd-key"
                             : "; if it uses TLS: --etcd-ca"));
  }
  absl::Status result;
  // A second time with a new token, if the first one was too old: etcd then did nothing.
  for (int tries = 0; tries < 2; ++tries) {
    std::string token;
    if (!options_.user.empty()) {
      absl::StatusOr<std::string> known = Token(endpoint);
      if (!known.ok()) {
        result = known.status();
        break;
      }
      token = *std::move(known);
    }
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + options_.call_timeout));
    if (!token.empty()) context.AddMetadata(kTokenHeader, token);
    const grpc::Status status = body(endpoint, &context);
    if (status.ok()) return absl::OkStatus();
    result = Explained(status, endpoint.address);
    const bool old = absl::IsUnauthenticated(result) ||
                     absl::StrContains(status.error_message(), "revision of auth store is old");
    if (!old || options_.user.empty()) break;
    ForgetToken(token);
  }
  if (absl::IsUnavailable(result) || absl::IsDeadlineExceeded(result)) Leave(endpoint);
  return result;
}

absl::StatusOr<etcdserverpb::RangeResponse> EtcdClient::Range(
    const etcdserverpb::RangeRequest& request) {
  etcdserverpb::RangeResponse reply;
  absl::Status status = Run([&](Endpoint& endpoint, grpc::ClientContext* context) {
    return endpoint.kv->Range(context, request, &reply);
  });
  if (!status.ok()) return status;
  return reply;
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdClient::Txn(const etcdserverpb::TxnRequest& request) {
  etcdserverpb::TxnResponse reply;
  absl::Status status = Run([&](Endpoint& endpoint, grpc::ClientContext* context) {
    return endpoint.kv->Txn(context, request, &reply);
  });
  if (!status.ok()) return status;
  return reply;
}

absl::StatusOr<EtcdApi::Lease> EtcdClient::GrantLease(absl::Duration ttl) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(std::max<int64_t>(1, absl::ToInt64Seconds(absl::Ceil(ttl, absl::Seconds(1)))));
  etcdserverpb::LeaseGrantResponse reply;
  absl::Status status = Run([&](Endpoint& endpoint, grpc::ClientContext* context) {
    return endpoint.lease->LeaseGrant(context, request, &reply);
  });
  if (!status.ok()) return status;
  return Lease{reply.id(), absl::Seconds(reply.ttl())};
}

absl::StatusOr<absl::Duration> EtcdClient::KeepAlive(int64_t lease) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse reply;
  absl::Status status = Run([&](Endpoint& endpoint, grpc::ClientContext* context) {
    const auto stream = endpoint.lease->LeaseKeepAlive(context);
    const bool answered = stream->Write(request) && stream->Read(&reply);
    if (answered) {
      // etcd sends nothing more until it is asked.
      context->TryCancel();
      (void)stream->Finish();
      return grpc::Status::OK;
    }
    const grpc::Status broken = stream->Finish();
    return broken.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the stream has ended")
                       : broken;
  });
  if (!status.ok()) return status;
  return absl::Seconds(reply.ttl());
}

absl::Status EtcdClient::RevokeLease(int64_t lease) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse reply;
  return Run([&](Endpoint& endpoint, grpc::ClientContext* context) {
    return endpoint.lease->LeaseRevoke(context, request, &reply);
  });
}

}  // namespace espalier
