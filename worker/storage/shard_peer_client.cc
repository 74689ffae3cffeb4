#include "worker/storage/shard_peer_client.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/net/authenticated_channel.h"
#include "base/net/grpc_status.h"
#include "worker/storage/shard_server.h"

namespace espalier {
namespace {

constexpr int kPeerKeepaliveMillis = 10'000;
constexpr int64_t kSentChunkBytes = 1 << 20;
// Of a call, at a speed below which the checkpoint store is the better source.
constexpr absl::Duration kLeastTimeout = absl::Seconds(20);
constexpr double kLeastBytesPerSecond = 1 << 20;

absl::Duration TimeoutFor(int64_t bytes) {
  return kLeastTimeout + absl::Seconds(static_cast<double>(bytes) / kLeastBytesPerSecond);
}

std::shared_ptr<grpc::Channel> ChannelTo(const v1::ShardPeer& peer) {
  grpc::ChannelArguments arguments = ChannelLimits();
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPeerKeepaliveMillis);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPeerKeepaliveMillis);
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  if (!peer.certificate().empty()) {
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs = peer.certificate();
    credentials = grpc::SslCredentials(tls);
    arguments.SetString(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, kShardsHost);
  }
  return KeyedChannel(
      peer.address(), arguments, [key = peer.key()] { return key; }, credentials);
}

}  // namespace

// A call in progress, which Cancel ends.
class ShardPeerClient::Call {
 public:
  Call(ShardPeerClient* owner, absl::Duration timeout) : owner_(*owner) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    absl::MutexLock lock(&owner_.mutex_);
    owner_.calls_.insert(&context);
    if (owner_.cancelled_) context.TryCancel();
  }
  ~Call() {
    absl::MutexLock lock(&owner_.mutex_);
    owner_.calls_.erase(&context);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  grpc::ClientContext context;

 private:
  ShardPeerClient& owner_;
};

ShardPeerClient::ShardPeerClient(const v1::ShardPeer& peer, std::string job_id)
    : address_(peer.address()),
      job_id_(std::move(job_id)),
      stub_(v1::Shards::NewStub(ChannelTo(peer))) {}

ShardPeerClient::~ShardPeerClient() = default;

absl::Status ShardPeerClient::At(const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("copies at ", address_, ": ", std::string(status.message())));
}

absl::Status ShardPeerClient::Put(const std::string& name, const std::string& sha256,
                                  const ReadableFile& shard) {
  Call call(this, TimeoutFor(shard.size()));
  v1::PutShardReply reply;
  const auto writer = stub_->Put(&call.context, &reply);
  v1::PutShardRequest request;
  request.mutable_begin()->set_job_id(job_id_);
  request.mutable_begin()->set_name(name);
  request.mutable_begin()->set_sha256(sha256);
  request.mutable_begin()->set_bytes(shard.size());
  bool open = writer->Write(request);
  for (int64_t at = 0; open && at < shard.size(); at += kSentChunkBytes) {
    std::string& chunk = *request.mutable_chunk();
    chunk.resize(static_cast<size_t>(std::min(kSentChunkBytes, shard.size() - at)));
    const absl::Status read = shard.Read(at, static_cast<int64_t>(chunk.size()), chunk.data());
    if (!read.ok()) {
      call.context.TryCancel();
      writer->Finish();
      return read;
    }
    open = writer->Write(request);
  }
  if (open) writer->WritesDone();
  const absl::Status status = FromGrpc(writer->Finish());
  if (!status.ok()) return At(status);
  if (!reply.kept()) return At(absl::ResourceExhaustedError("no room in its --cache-bytes"));
  return absl::OkStatus();
}

absl::StatusOr<std::set<std::string>> ShardPeerClient::Find(const std::vector<std::string>& sha256,
                                                            absl::Duration timeout) {
  Call call(this, timeout);
  v1::FindShardsRequest request;
  request.set_job_id(job_id_);
  request.mutable_sha256()->Assign(sha256.begin(), sha256.end());
  v1::FindShardsReply reply;
  const absl::Status status = FromGrpc(stub_->Find(&call.context, request, &reply));
  if (!status.ok()) return At(status);
  return std::set<std::string>(reply.sha256().begin(), reply.sha256().end());
}

absl::Status ShardPeerClient::Read(const std::string& sha256, int64_t offset, int64_t bytes,
                                   void* out) {
  Call call(this, TimeoutFor(bytes));
  v1::ReadShardRequest request;
  request.set_job_id(job_id_);
  request.set_sha256(sha256);
  request.set_offset(offset);
  request.set_bytes(bytes);
  const auto reader = stub_->Read(&call.context, request);
  v1::ReadShardReply reply;
  char* next = static_cast<char*>(out);
  while (reader->Read(&reply)) {
    const auto arrived = static_cast<int64_t>(reply.chunk().size());
    if (arrived > bytes) {
      call.context.TryCancel();
      reader->Finish();
      return At(absl::DataLossError("more arrived than was asked for"));
    }
    std::memcpy(next, reply.chunk().data(), reply.chunk().size());
    next += arrived;
    bytes -= arrived;
  }
  absl::Status status = FromGrpc(reader->Finish());
  if (status.ok() && bytes > 0) {
    status = absl::DataLossError(absl::StrCat(bytes, " bytes less arrived than were asked for"));
  }
  return At(status);
}

void ShardPeerClient::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : calls_) context->TryCancel();
}

}  // namespace espalier
