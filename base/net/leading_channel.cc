#include "base/net/leading_channel.h"

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/support/client_interceptor.h>

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/net/authenticated_channel.h"
#include "base/net/channel_connection.h"

namespace espalier {
namespace {

struct CreatesCalls;  // names the specialization below

}  // namespace
}  // namespace espalier

// gRPC lets only its own templates create the calls of a channel that another channel stands for;
// its DelegatingChannel cannot change the channel.
template <>
class grpc::internal::BlockingUnaryCallImpl<espalier::CreatesCalls, espalier::CreatesCalls> {
 public:
  static Call Create(ChannelInterface& channel, const RpcMethod& method, ClientContext* context,
                     CompletionQueue* queue) {
    return channel.CreateCall(method, context, queue);
  }
};

namespace espalier {
namespace {

using grpc::experimental::InterceptionHookPoints;

constexpr absl::Duration kConnect = absl::Milliseconds(500);  // to one of them
constexpr absl::Duration kProbe = absl::Seconds(2);
// A coordinator that was stopped, or whose host is gone, does not answer.
constexpr int kKeepaliveMillis = 10'000, kKeepaliveTimeoutMillis = 5'000;
// Any answer comes from a coordinator that leads: one that stands by is UNAVAILABLE for every call.
constexpr char kProbeMethod[] = "/grpc.health.v1.Health/Check";

// Which of the addresses leads, as far as known. Thread-safe.
class Leader {
 public:
  // -1: unknown.
  int known() const {
    absl::MutexLock lock(&mutex_);
    return known_;
  }
  void Set(int index) {
    absl::MutexLock lock(&mutex_);
    known_ = next_ = index;
  }
  // A call to this one has failed: another one may lead.
  void Doubt(int index, int count) {
    absl::MutexLock lock(&mutex_);
    if (known_ != index) return;
    known_ = -1;
    next_ = (index + 1) % count;
  }
  // Where to begin to look.
  int next() const {
    absl::MutexLock lock(&mutex_);
    return next_;
  }

 private:
  mutable absl::Mutex mutex_;
  int known_ ABSL_GUARDED_BY(mutex_) = -1;
  int next_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Doubts that a coordinator leads which does not answer.
class Watcher : public grpc::experimental::Interceptor {
 public:
  Watcher(std::shared_ptr<Leader> leader, int index, int count)
      : leader_(std::move(leader)), index_(index), count_(count) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_STATUS)) {
      const grpc::Status* status = methods->GetRecvStatus();
      if (status != nullptr && (status->error_code() == grpc::StatusCode::UNAVAILABLE ||
                                status->error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)) {
        leader_->Doubt(index_, count_);
      }
    }
    methods->Proceed();
  }

 private:
  const std::shared_ptr<Leader> leader_;
  const int index_, count_;
};

class WatcherFactory : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  WatcherFactory(std::shared_ptr<Leader> leader, int index, int count)
      : leader_(std::move(leader)), index_(index), count_(count) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new Watcher(leader_, index_, count_);  // owned by gRPC
  }

 private:
  const std::shared_ptr<Leader> leader_;
  const int index_, count_;
};

bool Leads(const std::shared_ptr<grpc::Channel>& channel) {
  if (!WaitForConnection(*channel, kConnect)) return false;
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kProbe));
  grpc::CompletionQueue queue;
  const grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  const auto call = stub.PrepareUnaryCall(&context, kProbeMethod, request, &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, &status);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return status.error_code() != grpc::StatusCode::UNAVAILABLE &&
         status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED;
}

class LeadingChannelImpl : public grpc::ChannelInterface {
 public:
  LeadingChannelImpl(const std::vector<std::string>& addresses, grpc::ChannelArguments arguments,
                     const ShownKey& key,
                     const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : leader_(std::make_shared<Leader>()) {
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMillis);
    for (size_t i = 0; i < addresses.size(); ++i) {
      std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> watch;
      watch.push_back(std::make_unique<WatcherFactory>(leader_, static_cast<int>(i),
                                                       static_cast<int>(addresses.size())));
      channels_.push_back(
          KeyedChannel(addresses[i], arguments, key, credentials, std::move(watch)));
    }
  }

  grpc_connectivity_state GetState(bool try_to_connect) override {
    return Choose()->GetState(try_to_connect);
  }

 private:
  // The channel to the leader; to one of the others if none answers.
  std::shared_ptr<grpc::Channel> Choose() {
    if (const int known = leader_->known(); known >= 0) return Channel(known);
    absl::MutexLock lock(&looking_);
    if (const int known = leader_->known(); known >= 0) return Channel(known);
    const int first = leader_->next(), count = static_cast<int>(channels_.size());
    int answers = first;
    for (int i = 0; i < count; ++i) {
      const int index = (first + i) % count;
      if (Leads(Channel(index))) {
        leader_->Set(index);
        return Channel(index);
      }
      if (Channel(index)->GetState(false) == GRPC_CHANNEL_READY) answers = index;
    }
    return Channel(answers);
  }
  const std::shared_ptr<grpc::Channel>& Channel(int index) const {
    return channels_[static_cast<size_t>(index)];
  }

  grpc::internal::Call CreateCall(const grpc::internal::RpcMethod& method,
                                  grpc::ClientContext* context,
                                  grpc::CompletionQueue* queue) override {
    return grpc::internal::BlockingUnaryCallImpl<CreatesCalls, CreatesCalls>::Create(
        *Choose(), method, context, queue);
  }
  // Calls belong to the channel that created them.
  void PerformOpsOnCall(grpc::internal::CallOpSetInterface*, grpc::internal::Call*) override {}
  // None: a registration would be of one channel.
  void* RegisterMethod(const char*) override { return nullptr; }
  void NotifyOnStateChangeImpl(grpc_connectivity_state last, gpr_timespec deadline,
                               grpc::CompletionQueue* queue, void* tag) override {
    Choose()->NotifyOnStateChange(last, deadline, queue, tag);
  }
  bool WaitForStateChangeImpl(grpc_connectivity_state last, gpr_timespec deadline) override {
    return Choose()->WaitForStateChange(last, deadline);
  }

  const std::shared_ptr<Leader> leader_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  absl::Mutex looking_;  // one caller looks for all
};

}  // namespace

absl::StatusOr<std::vector<std::string>> SplitAddresses(absl::string_view text,
                                                        absl::string_view what) {
  std::vector<std::string> addresses;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    addresses.emplace_back(absl::StripAsciiWhitespace(part));
    if (!addresses.back().empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, "=", text, ": accepted: HOST:PORT, or several with commas between"));
  }
  return addresses;
}

std::shared_ptr<grpc::ChannelInterface> LeadingChannel(
    const std::vector<std::string>& addresses, const grpc::ChannelArguments& arguments,
    const ShownKey& key, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  if (addresses.size() == 1) return KeyedChannel(addresses.front(), arguments, key, credentials);
  return std::make_shared<LeadingChannelImpl>(addresses, arguments, key, credentials);
}

}  // namespace espalier
