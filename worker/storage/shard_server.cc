#include "worker/storage/shard_server.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/net/api_keys.h"
#include "base/net/authenticated_channel.h"
#include "base/net/grpc_status.h"
#include "base/net/listen_error.h"
#include "base/net/own_address.h"
#include "base/net/x509.h"
#include "storage/object_reader.h"
#include "storage/shard_key.h"

namespace espalier {
namespace {

constexpr int64_t kReadChunkBytes = 1 << 20;
constexpr int kMostFound = 100'000;
constexpr int kMostThreads = 32;
constexpr int kCallerKeepaliveMillis = 20'000;
// Longer than any worker runs: a certificate is known by itself, not by its dates.
constexpr absl::Duration kLife = absl::Hours(24 * 3650);

class ShardService : public v1::Shards::Service {
 public:
  explicit ShardService(const ShardServerOptions& options)
      : call_key_(options.call_key), copies_(*options.copies) {}

  grpc::Status Put(grpc::ServerContext* context, grpc::ServerReader<v1::PutShardRequest>* reader,
                   v1::PutShardReply* reply) override {
    return ToGrpc(Receive(*context, *reader, reply));
  }

  grpc::Status Find(grpc::ServerContext* context, const v1::FindShardsRequest* request,
                    v1::FindShardsReply* reply) override {
    if (absl::Status s = Authorize(*context, request->job_id()); !s.ok()) return ToGrpc(s);
    if (request->sha256_size() > kMostFound) {
      return ToGrpc(absl::InvalidArgumentError(absl::StrCat("sha256: at most ", kMostFound)));
    }
    for (const std::string& sha256 : request->sha256()) {
      if (copies_.cache().OpenFile(sha256) != nullptr) reply->add_sha256(sha256);
    }
    return grpc::Status::OK;
  }

  grpc::Status Read(grpc::ServerContext* context, const v1::ReadShardRequest* request,
                    grpc::ServerWriter<v1::ReadShardReply>* writer) override {
    return ToGrpc(Send(*context, *request, *writer));
  }

 private:
  absl::Status Authorize(const grpc::ServerContext& context, const std::string& job_id) const {
    if (IsBearer(AuthorizationOf(context), ShardKey(call_key_, job_id))) return absl::OkStatus();
    return absl::UnauthenticatedError(
        "this worker keeps shards for the workers that its coordinator names");
  }

  absl::Status Receive(const grpc::ServerContext& context,
                       grpc::ServerReader<v1::PutShardRequest>& reader, v1::PutShardReply* reply) {
    v1::PutShardRequest request;
    if (!reader.Read(&request) || !request.has_begin()) {
      return absl::InvalidArgumentError("the first message: a begin is wanted");
    }
    const v1::PutShardRequest::Begin begin = request.begin();
    if (absl::Status s = Authorize(context, begin.job_id()); !s.ok()) return s;
    if (absl::Status s = CheckObjectName(begin.name()); !s.ok()) return s;
    if (begin.bytes() < 0) return absl::InvalidArgumentError("bytes: 0 or more");
    if (begin.bytes() > copies_.cache().max_bytes()) return absl::OkStatus();  // not kept
    absl::StatusOr<std::unique_ptr<HostCache::Writer>> file = copies_.cache().NewFile();
    if (!file.ok()) return file.status();
    int64_t bytes = 0;
    while (reader.Read(&request)) {
      const std::string& chunk = request.chunk();
      bytes += static_cast<int64_t>(chunk.size());
      if (bytes > begin.bytes()) break;
      absl::Status s = (*file)->Append(chunk.data(), static_cast<int64_t>(chunk.size()));
      if (absl::IsResourceExhausted(s)) return absl::OkStatus();  // not kept
      if (!s.ok()) return s;
    }
    if (context.IsCancelled()) return absl::CancelledError("the sender has gone");
    if (bytes == begin.bytes()) {
      absl::StatusOr<std::string> sha256 = (*file)->Keep();
      if (!sha256.ok()) return sha256.status();
      if (*sha256 == begin.sha256()) {
        copies_.Kept(begin.job_id(), begin.name(), *sha256);
        reply->set_kept(true);
        return absl::OkStatus();
      }
      copies_.cache().Remove(*sha256);
    }
    return absl::DataLossError(absl::StrCat("'", begin.name(), "': ", bytes, " of ", begin.bytes(),
                                            " bytes arrived, or others than announced"));
  }

  absl::Status Send(const grpc::ServerContext& context, const v1::ReadShardRequest& request,
                    grpc::ServerWriter<v1::ReadShardReply>& writer) {
    if (absl::Status s = Authorize(context, request.job_id()); !s.ok()) return s;
    const std::unique_ptr<ReadableFile> file = copies_.cache().OpenFile(request.sha256());
    if (file == nullptr) return absl::NotFoundError("there is no copy");
    if (request.offset() < 0 || request.bytes() < 0 || request.offset() > file->size() ||
        request.bytes() > file->size() - request.offset()) {
      return absl::OutOfRangeError(absl::StrCat("the copy has ", file->size(), " bytes"));
    }
    v1::ReadShardReply reply;
    const int64_t end = request.offset() + request.bytes();
    for (int64_t at = request.offset(); at < end; at += kReadChunkBytes) {
      std::string& chunk = *reply.mutable_chunk();
      chunk.resize(static_cast<size_t>(std::min(kReadChunkBytes, end - at)));
      absl::Status s = file->Read(at, static_cast<int64_t>(chunk.size()), chunk.data());
      if (!s.ok()) return s;
      if (!writer.Write(reply)) return absl::CancelledError("the reader has gone");
    }
    return absl::OkStatus();
  }

  const std::string call_key_;
  ShardCopies& copies_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShardServer>> ShardServer::Start(const ShardServerOptions& options) {
  std::unique_ptr<ShardServer> out(new ShardServer);
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (options.encrypted) {
    absl::StatusOr<std::string> key = MakePrivateKey();
    if (!key.ok()) return key.status();
    CertificateFields fields;
    fields.common_name = kShardsHost;
    fields.hosts = {kShardsHost};
    fields.not_before = absl::Now() - absl::Hours(24);
    fields.not_after = absl::Now() + kLife;
    absl::StatusOr<std::string> certificate = MakeSelfSigned(fields, *key);
    if (!certificate.ok()) return certificate.status();
    grpc::SslServerCredentialsOptions tls;
    tls.pem_key_cert_pairs.push_back({*key, *certificate});
    credentials = grpc::SslServerCredentials(tls);
    out->certificate_ = *std::move(certificate);
  }
  out->service_ = std::make_unique<ShardService>(options);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(JoinHostAndPort(options.listen_host, 0), credentials, &out->port_);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kCallerKeepaliveMillis);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kCallerKeepaliveMillis);
  // Senders look more often than gRPC's servers like by themselves.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.SetResourceQuota(grpc::ResourceQuota("shards").SetMaxThreads(kMostThreads));
  builder.RegisterService(out->service_.get());
  out->server_ = builder.BuildAndStart();
  if (out->server_ == nullptr || out->port_ == 0) {
    const absl::Status why = CannotListen(JoinHostAndPort(options.listen_host, 0));
    return absl::Status(why.code(), absl::StrCat("for copies of shards: ", why.message()));
  }
  return out;
}

ShardServer::~ShardServer() {
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

}  // namespace espalier
