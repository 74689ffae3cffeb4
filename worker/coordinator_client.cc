#include "worker/coordinator_client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/net/authenticated_channel.h"
#include "base/net/grpc_status.h"
#include "base/net/leading_channel.h"

namespace espalier {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(10);
// After twice as long without an answer, a stream of the storage service has broken.
constexpr int kKeepaliveMillis = 15'000;
constexpr absl::Duration kStoreWait = absl::Seconds(1);  // per StoreGet; repeats until the deadline

void SetTimeout(grpc::ClientContext* context, absl::Duration timeout) {
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
}

class CoordinatorStore : public RendezvousStore {
 public:
  CoordinatorStore(v1::Cluster::Stub* stub, std::string place, v1::Lease lease, std::string job_id,
                   uint64_t attempt, std::function<bool()> cancelled)
      : stub_(stub),
        place_(std::move(place)),
        lease_(std::move(lease)),
        job_id_(std::move(job_id)),
        attempt_(attempt),
        cancelled_(std::move(cancelled)) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    v1::StoreSetRequest request;
    *request.mutable_lease() = lease_;
    request.set_job_id(job_id_);
    request.set_attempt(attempt_);
    request.set_key(key);
    request.set_value(value);
    v1::StoreSetReply reply;
    grpc::ClientContext context;
    SetTimeout(&context, kCallTimeout);
    return FromGrpc(stub_->StoreSet(&context, request, &reply), place_);
  }

  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    v1::StoreGetRequest request;
    *request.mutable_lease() = lease_;
    request.set_job_id(job_id_);
    request.set_attempt(attempt_);
    request.set_key(key);
    while (true) {
      if (cancelled_ && cancelled_())
        return absl::CancelledError("cancelled while waiting for peers");
      const absl::Duration left = deadline - absl::Now();
      request.set_wait_seconds(
          std::max(0.0, absl::ToDoubleSeconds(std::min<absl::Duration>(left, kStoreWait))));
      v1::StoreGetReply reply;
      grpc::ClientContext context;
      SetTimeout(&context, kCallTimeout);
      absl::Status s = FromGrpc(stub_->StoreGet(&context, request, &reply), place_);
      if (!s.ok()) return s;
      if (reply.found()) return reply.value();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            absl::StrCat("timed out: no rank of job ", job_id_, " has set '", key, "'"));
      }
    }
  }

 private:
  v1::Cluster::Stub* const stub_;
  const std::string place_;
  const v1::Lease lease_;
  const std::string job_id_;
  const uint64_t attempt_;
  const std::function<bool()> cancelled_;
};

}  // namespace

CoordinatorClient::CoordinatorClient(const std::vector<std::string>& addresses, const ShownKey& key,
                                     const TransportSecurity& tls)
    : address_(absl::StrJoin(addresses, ",")) {
  auto channel = LeadingChannel(addresses, ChannelLimits(), key, CallersCredentials(tls));
  cluster_ = v1::Cluster::NewStub(channel);
  models_ = v1::Models::NewStub(channel);
  grpc::ChannelArguments bulk = ChannelLimits();
  bulk.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // not the other channel's connection
  bulk.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
  bulk.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMillis);
  new_storage_ = [addresses, bulk, key, credentials = CallersCredentials(tls)] {
    return std::shared_ptr<v1::Storage::StubInterface>(
        v1::Storage::NewStub(LeadingChannel(addresses, bulk, key, credentials)));
  };
}

absl::StatusOr<v1::JoinReply> CoordinatorClient::Join(const v1::JoinRequest& request) {
  grpc::ClientContext context;
  SetTimeout(&context, kCallTimeout);
  v1::JoinReply reply;
  absl::Status s =
      FromGrpc(cluster_->Join(&context, request, &reply), absl::StrCat("coordinator ", address_));
  if (!s.ok()) return s;
  return reply;
}

absl::StatusOr<v1::HeartbeatReply> CoordinatorClient::Heartbeat(const v1::HeartbeatRequest& request,
                                                                absl::Duration timeout) {
  grpc::ClientContext context;
  SetTimeout(&context, timeout);
  v1::HeartbeatReply reply;
  absl::Status s = FromGrpc(cluster_->Heartbeat(&context, request, &reply),
                            absl::StrCat("coordinator ", address_));
  if (!s.ok()) return s;
  return reply;
}

absl::StatusOr<v1::DrainReply> CoordinatorClient::Drain(const v1::Lease& lease,
                                                        absl::Duration timeout) {
  grpc::ClientContext context;
  SetTimeout(&context, timeout);
  v1::DrainRequest request;
  *request.mutable_lease() = lease;
  v1::DrainReply reply;
  absl::Status s =
      FromGrpc(cluster_->Drain(&context, request, &reply), absl::StrCat("coordinator ", address_));
  if (!s.ok()) return s;
  return reply;
}

absl::Status CoordinatorClient::Leave(const v1::Lease& lease) {
  grpc::ClientContext context;
  SetTimeout(&context, absl::Seconds(2));
  v1::LeaveRequest request;
  *request.mutable_lease() = lease;
  v1::LeaveReply reply;
  return FromGrpc(cluster_->Leave(&context, request, &reply),
                  absl::StrCat("coordinator ", address_));
}

std::unique_ptr<RendezvousStore> CoordinatorClient::Store(const v1::Lease& lease,
                                                          const std::string& job_id,
                                                          uint64_t attempt,
                                                          std::function<bool()> cancelled) {
  return std::make_unique<CoordinatorStore>(cluster_.get(), absl::StrCat("coordinator ", address_),
                                            lease, job_id, attempt, std::move(cancelled));
}

}  // namespace espalier
